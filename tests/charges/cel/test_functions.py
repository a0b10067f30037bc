"""Every function of CEL charges for its input and output before it works.

The test iterates over the table, so it includes every new function; an argument type
that samples.py does not support fails.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from kyverno_mp.errors import InputError
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.library import Overload
from kyverno_mp.expr.cel.patches import patch_library
from kyverno_mp.expr.cel.values import (
    FAILURE_COST,
    UNITS_PER_STEP,
    CelFailed,
    Meter,
)
from tests.charges.cel import gauge, samples
from tests.yardstick import slowness

_TIMES = 100


def _overloads() -> Iterator[tuple[str, Overload]]:
    patches = patch_library()
    base = kyverno_library()
    for table in (base.functions, base.members):
        for name, overloads in table.items():
            for overload in overloads:
                if overload.implementation is not None:
                    yield name, overload
    for name, overloads in patches.functions.items():
        if name not in base.functions:
            yield from ((name, overload) for overload in overloads)


def _by_name() -> dict[str, list[Overload]]:
    found: dict[str, list[Overload]] = {}
    for name, overload in _overloads():
        found.setdefault(name, []).append(overload)
    return found


_TABLE = _by_name()


def _work(overload: Overload, args: tuple[Any, ...], times: int = 1) -> gauge.Work:
    """Return the calls with the charge of link.py for each."""
    call = overload.implementation
    assert call is not None

    def work(budget: gauge.RuleBudget) -> Any:
        meter = Meter(10_000_000 if times > 1 else 1_000_000, budget)
        value = None
        try:
            for _ in range(times):
                meter.left -= overload.cost + 1 + len(args)
                try:
                    value = call(meter, *args)
                except CelFailed:
                    meter.left -= FAILURE_COST
        finally:
            budget.steps_left -= meter.settle()
        return value

    return work


def _told(name: str, args: tuple[Any, ...]) -> str:
    shown = [f"{type(arg).__name__} {str(arg)[:20]!r}" for arg in args]
    return f"{name}({', '.join(shown)})"


@pytest.mark.parametrize("name", _TABLE)
def test_many_small_calls_are_charged(name: str) -> None:
    for overload in _TABLE[name]:
        for args in samples.combinations(overload.args, 2, hostile=False):
            found = gauge.problem(_work(overload, args, _TIMES))
            assert not found, f"{_told(name, args)} {found}"


@pytest.mark.parametrize("name", _TABLE)
def test_large_arguments_are_charged(name: str) -> None:
    for overload in _TABLE[name]:
        for args in samples.combinations(overload.args, 3, hostile=True):
            found = gauge.problem(_work(overload, args))
            assert not found, f"{_told(name, args)} {found}"


@pytest.mark.parametrize("name", _TABLE)
def test_memory_is_charged(name: str) -> None:
    for overload in _TABLE[name]:
        if not any(samples.is_growing(kind) for kind in overload.args):
            continue
        for args in samples.combinations(overload.args, 2, hostile=True)[::4]:
            work = _work(overload, args)
            _warm(work)
            found = gauge.memory_problem(work)
            assert not found, f"{_told(name, args)} {found}"


def _warm(work: gauge.Work) -> None:
    """Run once, so that caches and tables are not counted as memory of the work."""
    with suppress(InputError, CelFailed):
        work(gauge.RuleBudget())


def test_gauge_detects_uncharged_work() -> None:
    assert gauge.problem(lambda _budget: sum(range(1_000_000)))
    assert gauge.problem(_late)
    assert gauge.memory_problem(lambda _budget: [0] * 1_000_000)
    assert not gauge.problem(lambda budget: budget.charge(100))
    assert UNITS_PER_STEP == 10


def _late(budget: gauge.RuleBudget) -> None:
    # In charges below HEAVY_STEPS: a heavy one covers the time after it.
    for _ in range(100):
        budget.charge(9_000)
    until = time.thread_time() + 4 * gauge.GAP_S * slowness()
    while time.thread_time() < until:
        pass
