"""Counts of many threads reach the only writer of the page exactly once."""

import threading

from kyverno_mp.telemetry.tally import Tally


def test_threads_lose_no_count() -> None:
    tally = Tally()
    found: dict[tuple[str, ...], int] = {}

    def count() -> None:
        for number in range(5000):
            tally.add((str(number % 3),))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for labels, count_ in tally.drain().items():
            found[labels] = found.get(labels, 0) + count_
    for labels, count_ in tally.drain().items():
        found[labels] = found.get(labels, 0) + count_
    assert sum(found.values()) == 20_000
    assert len(found) == 3


def test_tally_that_is_never_drained_stays_small() -> None:
    tally = Tally()
    for number in range(10_000):
        tally.add((str(number),))
    assert len(tally.drain()) < 5000
