"""A single change is processed at once; a burst is processed in a few batches."""

from kyverno_mp.queues.pace import Pace, Slice

WORK_S = 0.004


def worked_at(changes: list[float]) -> list[float]:
    """Return the times at which work begins, by the clock of the changes."""
    pace = Pace()
    begun: list[float] = []
    pending = sorted(changes)
    while pending:
        now = pending[0] if not begun else max(pending[0], begun[-1] + WORK_S)
        now += pace.wait_s(now)
        begun.append(now)
        pace.worked(now, now + WORK_S)
        pending = [at for at in pending if at > now]
    return begun


def test_single_changes_are_not_delayed() -> None:
    changes = [0.5 * number for number in range(100)]
    assert worked_at(changes) == changes


def test_a_create_and_a_delete_soon_after_it_wait_for_nothing() -> None:
    # A create, our own write of the status, a delete, and the next create.
    changes = [at + 0.3 * n for n in range(100) for at in (0.0, 0.012, 0.02)]
    assert worked_at(changes) == sorted(changes)


def test_the_changes_after_a_burst_wait_for_nothing() -> None:
    burst = [0.005 * number for number in range(400)]
    single = [2.4 + 0.3 * number for number in range(20)]
    # The first of them still waits for the burst's last pause.
    assert worked_at([*burst, *single])[-19:] == single[1:]


def test_an_arrival_without_work_is_no_part_of_a_series() -> None:
    pace = Pace()
    for number in range(20):
        pace.worked(number * 10.0, number * 10.0 + WORK_S)
        # Something arrives at once, but nothing has changed.
        assert pace.wait_s(number * 10.0 + 0.01) == 0
        pace.idle()
        assert pace.wait_s((number + 1) * 10.0) == 0


def test_thousand_changes_are_processed_in_few_batches() -> None:
    changes = [0.005 * number for number in range(1000)]
    begun = worked_at(changes)
    assert len(begun) < 40
    assert begun[0] == 0
    assert begun[-1] - changes[-1] < 0.4


def test_change_after_a_burst_is_not_delayed() -> None:
    burst = [0.005 * number for number in range(1000)]
    assert worked_at([*burst, 10.0])[-1] == 10.0


def test_long_work_is_not_restarted_immediately() -> None:
    pace = Pace()
    pace.worked(0.0, 1.0)
    pace.worked(1.0, 2.0)
    assert pace.wait_s(2.0) == 1.0


def rounds_of(jobs: int, job_s: float, rest_s: float, least_s: float) -> int:
    """Return the number of rounds: some jobs, then the rest of the work."""
    now_s = 0.0
    part = Slice(least_s, lambda: now_s)
    rounds = 0
    while jobs > 0:
        rounds += 1
        with part.round():
            while True:
                now_s += job_s
                jobs -= 1
                if jobs == 0 or part.is_over():
                    break
            now_s += rest_s
    return rounds


def test_rounds_do_not_multiply_on_a_slow_machine() -> None:
    """What else a round takes is at most as long as the part, after the first round."""
    for slower in (1, 10, 100):
        rest_s = 0.05 * slower
        rounds = rounds_of(1000, 0.001 * slower, rest_s, 0.25)
        assert rounds * rest_s <= 1.0 * slower + 2 * rest_s


def test_a_part_ends_after_its_time() -> None:
    # One before the first look at the clock, and eleven.
    assert rounds_of(100, 0.1, 0.01, 1.05) == 9
    # What else a round takes counts only up to five seconds.
    assert rounds_of(100, 1.0, 1000.0, 0.5) > 100 / 8
