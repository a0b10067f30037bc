"""Delays before a restart, and the definition of a crash loop."""

from kyverno_mp.process.supervision.backoff import Backoff


def make() -> Backoff:
    return Backoff(least_s=0.5, most_s=4.0, window_s=10.0, loop_deaths=3)


def test_pause_doubles_up_to_its_limit() -> None:
    backoff = make()
    assert [backoff.died(0.1 * n) for n in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_old_deaths_are_ignored() -> None:
    backoff = make()
    backoff.died(0.0)
    backoff.died(1.0)
    assert backoff.died(20.0) == 0.5
    assert not backoff.looping(20.0)


def test_repeated_deaths_in_the_window_are_a_crash_loop() -> None:
    backoff = make()
    for moment in (0.0, 1.0, 2.0):
        assert not backoff.looping(moment)
        backoff.died(moment)
    assert backoff.looping(2.0)
    assert not backoff.looping(12.5)
