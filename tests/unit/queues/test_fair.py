"""A full queue keeps room for those who hold little of it.

A failure means: whoever sends many reviews in one namespace, or in invented ones, costs
other namespaces their Events, audits or recordings.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.webhook.audit.queue import AuditQueue

NAMESPACES = st.sampled_from("abcdefgh")
FLOODS = st.lists(st.tuples(NAMESPACES, st.integers(1, 300)), max_size=12)


def queue(tasks_max: int, **limits: Any) -> AuditQueue:
    return AuditQueue(
        tasks_max,
        on_drop=lambda: None,
        on_error=lambda error: pytest.fail(str(error)),
        **limits,
    )


@given(FLOODS)
def test_each_namespace_keeps_its_fair_part_of_the_audits(
    floods: list[tuple[str, int]],
) -> None:
    tasks_max = 40
    waiting, ran, sent = queue(tasks_max), list[str](), Counter[str]()
    for namespace, number in floods:
        sent[namespace] += number
        for _ in range(number):
            waiting.put(partial(ran.append, namespace), 0, namespace)
    assert waiting.waiting == min(tasks_max, sum(sent.values()))
    assert waiting.dropped == sum(sent.values()) - waiting.waiting
    waiting.start()
    assert waiting.stop(60)
    kept = Counter(ran)
    for namespace, number in sent.items():
        assert kept[namespace] >= min(number, tasks_max // len(sent))


@given(FLOODS)
def test_waiting_bytes_are_shared_too(floods: list[tuple[str, int]]) -> None:
    waiting, sent = queue(10**6, bytes_max=1000), Counter[str]()
    for namespace, size in floods:
        for _ in range(20):
            sent[namespace] += 1
            waiting.put(lambda: None, size, namespace)
            assert waiting.held_bytes <= max(1000, size)
    newcomer = waiting.put(lambda: None, 100, "newcomer")
    assert newcomer
    assert waiting.unfinished == waiting.waiting


def test_tasks_run_in_order_of_arrival() -> None:
    waiting, ran = queue(6), list[str]()
    for number in range(5):
        waiting.put(partial(ran.append, f"a{number}"), 0, "a")
    for number in range(3):
        waiting.put(partial(ran.append, f"b{number}"), 0, "b")
    waiting.start()
    assert waiting.stop(60)
    assert ran == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert waiting.dropped == 2


@given(FLOODS, st.integers(0, 400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_namespace_has_room_in_a_journal(
    tmp_path_factory: pytest.TempPathFactory,
    floods: list[tuple[str, int]],
    size: int,
) -> None:
    folder: Path = tmp_path_factory.mktemp("journals")
    journal = Journal.claim(folder, 100, 64 * 1024)
    sent = Counter[str]()
    for namespace, number in floods:
        sent[namespace] += number
        for _ in range(number):
            journal.append(namespace.encode() + bytes(size), namespace)
    reader = JournalReader(folder)
    for namespace in [*sent, "newcomer"]:
        journal.append(namespace.encode() + bytes(size), namespace)
    kept = Counter[str]()
    for record in reader.records():
        kept[record.content.rstrip(b"\0").decode()] += 1
        record.done()
    assert kept.keys() == {*sent, "newcomer"}
    # What was read no longer counts.
    assert all(journal.append(b"x", "a") for _ in range(75))
    reader.close()
    journal.close()
