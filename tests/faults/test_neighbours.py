"""Whatever one review makes the engine do, others are answered meanwhile.

One worker, as its event loop is what can be held up. A failure means: a policy in
somebody's own namespace delays the requests of everybody else, or kills the worker.
``python perf/neighbours.py`` prints what each attack comes to.
"""

import contextlib
from pathlib import Path

import pytest

from tests.faults.attacks import ATTACKS
from tests.faults.neighbour import DEADLINE_S, run, start

pytestmark = pytest.mark.slow
NEIGHBOUR_S_MAX = 0.5
"""The aim is 0.25 (perf/neighbours.py --check); a wall clock needs room in CI."""
HEALTH_S_MAX = 2.0
ATTEMPTS = 4
"""Other programs may hold this machine's cores up for as long: one quiet run counts."""
ATTACK_S = 1.5
ANSWERS_MIN = 10
ANSWER_BYTES_MAX = 8 * 1024 * 1024


@pytest.mark.parametrize("name", ATTACKS)
def test_neighbours_are_answered_in_time(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    service = start(tmp_path, attack)
    waits = []
    with contextlib.closing(service):
        for _ in range(ATTEMPTS):
            seen = run(service, attack, connections=4, seconds=ATTACK_S)
            assert seen.same_worker, service.errors()[-2000:]
            assert not seen.neighbour_wrong
            assert not seen.lost, "each gets an answer"
            assert max(seen.attack_s) < DEADLINE_S + 2.0, "each by its deadline"
            assert seen.attack_bytes_max < ANSWER_BYTES_MAX
            waits.append(
                (seen.neighbour_s_max, seen.health_s_max, seen.neighbour_answers)
            )
            if (
                seen.neighbour_answers > ANSWERS_MIN
                and seen.neighbour_s_max < NEIGHBOUR_S_MAX
                and seen.health_s_max < HEALTH_S_MAX
            ):
                return
    pytest.fail(f"(s that neighbours waited, that probes waited, answers): {waits}")
