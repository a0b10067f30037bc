"""Whatever work one review causes, others are answered in time.

There is one worker, because its event loop could be blocked. A failure means: a
tenant's policy delays other users' requests or kills the worker. ``python
perf/neighbours.py`` prints the results of each attack.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.attacks import ATTACKS
from tests.faults.neighbour import DEADLINE_S, run, start
from tests.faults.service import Service
from tests.yardstick import slowness

pytestmark = [pytest.mark.slow, pytest.mark.alone]
NEIGHBOUR_S_MAX = 0.5
"""The target is 0.25 (perf/neighbours.py --check); CI needs tolerance for wall time.

As on the machine of the yardstick: a machine of half the speed has twice the time.
"""
HEALTH_S_MAX = 2.0
ATTEMPTS = 4
"""Other programs may block this machine's cores for as long: one quiet run counts."""
ATTACK_S = 1.5
ANSWERS_MIN = 10
ANSWER_BYTES_MAX = 8 * 1024 * 1024
WORKER_MIB_MAX = 300.0
"""Twice the memory of all reviews at once. Reviews that stay need more each time."""
_AHEAD = 4
"""Services that start together, because a start keeps one core busy. Then they wait."""


@pytest.fixture(scope="module")
def service_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Service]]:
    """Yield the service of each attack; no other starts while an attack runs."""
    names = list(ATTACKS)
    # Made here, not in the threads: pytest's factory is not safe for threads.
    folders = {name: tmp_path_factory.mktemp("attacked") for name in names}
    waiting: dict[str, Service] = {}

    def begin(name: str) -> None:
        waiting[name] = start(folders[name], ATTACKS[name])

    def take(name: str) -> Service:
        if name not in waiting:
            at = names.index(name)
            with ThreadPoolExecutor(_AHEAD) as pool:
                list(pool.map(begin, names[at : at + _AHEAD]))
        return waiting.pop(name)

    yield take
    for service in waiting.values():
        service.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_other_tenants_are_answered_in_time(
    name: str, service_for: Callable[[str], Service]
) -> None:
    attack = ATTACKS[name]
    service = service_for(name)
    waits = []
    with contextlib.closing(service):
        for _ in range(ATTEMPTS):
            slower = slowness()
            seen = run(service, attack, connections=4, seconds=ATTACK_S)
            assert seen.same_worker, service.errors()[-2000:]
            assert not seen.neighbour_wrong
            assert not seen.lost, "each gets an answer"
            assert max(seen.attack_s) < DEADLINE_S + 2.0, "each by its deadline"
            assert seen.attack_bytes_max < ANSWER_BYTES_MAX
            assert seen.worker_mib < WORKER_MIB_MAX
            slower = max(slower, slowness())
            waits.append(
                (
                    seen.neighbour_s_max,
                    seen.health_s_max,
                    seen.neighbour_answers,
                    slower,
                )
            )
            if (
                seen.neighbour_answers > ANSWERS_MIN
                and seen.neighbour_s_max < NEIGHBOUR_S_MAX * slower
                and seen.health_s_max < HEALTH_S_MAX * slower
            ):
                return
    pytest.fail(f"(s of neighbours, s of probes, answers, slowness): {waits}")
