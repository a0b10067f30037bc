"""Rules spend the budgets of their policy and of the request."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from kyverno_mp.errors import BudgetExceeded, DeadlinePassed, Preempted
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import (
    CLUSTER_STEPS_MAX,
    EXPRESSION_BYTES_MAX,
    HEAVY_STEPS,
    POLICY_STEPS_MAX,
    STEPS_BETWEEN_CLOCK_CHECKS,
    TENANT_STEPS_MAX,
    TENANT_TIME_DIVISOR,
)
from kyverno_mp.values.jsonvalue import Json

_DEADLINE_NS = 10_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Pace:
    """A pace that counts the requested slices."""

    def __init__(self, slices: int = 1000) -> None:
        self.left = slices
        self.slice_ends_ns = 100

    def next_slice(self, now_ns: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Preempted("test.preempted", "no more")
        self.slice_ends_ns = now_ns + 100

    def make_room(self) -> None:
        self.next_slice(0)


def runtime(
    clock: Clock | None = None, deadline_ns: int = 0, pace: Pace | None = None
) -> Runtime:
    return Runtime(
        now=lambda: datetime.now(UTC),
        monotonic_ns=clock or Clock(),
        deadline_ns=deadline_ns,
        pace=pace,
    )


def spend_all(given: Runtime) -> int:
    """Charge until the budget is spent; return the total."""
    spent = 0
    with contextlib.suppress(BudgetExceeded):
        while True:
            given.charge(1000)
            spent += 1000
    return spent


def test_policy_has_one_budget_for_all_its_rules() -> None:
    given = runtime()
    given.begin_policy("p", is_tenant=False)
    for _ in range(10):
        given.charge(POLICY_STEPS_MAX // 10)
        given.begin_rule()
    with pytest.raises(BudgetExceeded):
        given.charge()


def test_byte_budgets_are_per_rule() -> None:
    given = runtime()
    given.begin_policy("p", is_tenant=False)
    for _ in range(3):
        given.charge_bytes(EXPRESSION_BYTES_MAX)
        with pytest.raises(BudgetExceeded):
            given.charge_bytes(1)
        given.begin_rule()


@pytest.mark.parametrize(
    ("is_tenant", "most"), [(False, CLUSTER_STEPS_MAX), (True, TENANT_STEPS_MAX)]
)
def test_policies_share_the_budget_of_their_group(
    is_tenant: bool,  # noqa: FBT001 - a table
    most: int,
) -> None:
    given = runtime()
    spent = 0
    for number in range(20):
        given.begin_policy(number, is_tenant=is_tenant)
        spent += spend_all(given)
    assert most * 0.9 < spent <= most


def test_tenants_never_use_the_budget_of_cluster_policies() -> None:
    given = runtime()
    for number in range(20):
        given.begin_policy(number, is_tenant=True)
        spend_all(given)
    given.begin_policy("cluster", is_tenant=False)
    assert spend_all(given) == POLICY_STEPS_MAX


def test_tenants_have_a_share_of_the_time() -> None:
    clock = Clock()
    given = runtime(clock, _DEADLINE_NS)
    given.begin_policy("cluster", is_tenant=False)
    assert given.deadline_ns == _DEADLINE_NS
    clock.now_ns = 2_000
    share = (_DEADLINE_NS - 2_000) // TENANT_TIME_DIVISOR
    given.begin_policy("tenant", is_tenant=True)
    assert given.deadline_ns == 2_000 + share
    clock.now_ns += share // 2
    given.begin_policy("cluster", is_tenant=False)
    clock.now_ns += 1_000
    given.begin_policy("another tenant", is_tenant=True)
    assert given.deadline_ns == clock.now_ns + share // 2
    clock.now_ns = given.deadline_ns + 1
    with pytest.raises(BudgetExceeded) as caught:
        given.charge(STEPS_BETWEEN_CLOCK_CHECKS)
    assert caught.value.code == "expr.time"
    given.begin_policy("cluster", is_tenant=False)
    given.charge(STEPS_BETWEEN_CLOCK_CHECKS)
    clock.now_ns = _DEADLINE_NS + 1
    with pytest.raises(DeadlinePassed):
        given.charge(STEPS_BETWEEN_CLOCK_CHECKS)


@pytest.mark.parametrize("deadline_ns", [0, _DEADLINE_NS])
def test_pace_is_called_at_the_end_of_each_slice(deadline_ns: int) -> None:
    clock = Clock()
    given = runtime(clock, deadline_ns, Pace(2))
    given.begin_policy("p", is_tenant=False)
    for now_ns in (99, 101, 150, 202):
        clock.now_ns = now_ns
        given.charge(STEPS_BETWEEN_CLOCK_CHECKS)
    clock.now_ns = 400
    with pytest.raises(Preempted):
        given.charge(STEPS_BETWEEN_CLOCK_CHECKS)


def test_clock_is_not_read_without_deadline_or_pace() -> None:
    def now() -> int:
        raise AssertionError

    given = Runtime(now=lambda: datetime.now(UTC), monotonic_ns=now)
    for number in range(3):
        given.begin_policy(number, is_tenant=number == 1)
        given.charge(10_000)
        given.check_clock()


def test_slow_work_moves_out_of_the_slice_first() -> None:
    """A failure means: the event loop is blocked while the work of one charge runs."""
    clock = Clock()
    given = runtime(clock, 0, Pace(0))
    given.begin_policy("p", is_tenant=False)
    given.charge(HEAVY_STEPS // 2)
    with pytest.raises(Preempted):
        given.charge(2 * HEAVY_STEPS)


def test_assertion_yields_to_other_reviews() -> None:
    """Assertions convert numbers differently, but share the request's time limit."""
    clock, pace = Clock(), Pace(slices=3)
    given = runtime(clock, _DEADLINE_NS, pace)
    inner = given.with_int64()
    assert (inner.steps_left, inner.bytes_left) == (given.steps_left, given.bytes_left)
    assert not inner.ints_are_numbers
    clock.now_ns = 150
    inner.charge(STEPS_BETWEEN_CLOCK_CHECKS)
    assert pace.left == 2
    clock.now_ns = _DEADLINE_NS + 1
    with pytest.raises(DeadlinePassed):
        inner.charge(STEPS_BETWEEN_CLOCK_CHECKS)


def test_a_long_assertion_is_preempted() -> None:
    clock, pace = Clock(), Pace(slices=0)
    program = link_assertion(parse_assertion({"~.(l)": {"(a || b)": None}}))
    scope = _Scope(runtime(clock, 0, pace))
    clock.now_ns = 150
    with pytest.raises(Preempted):
        program.evaluate({"l": [{} for _ in range(10_000)]}, scope)


class _Scope:
    """A scope that loads nothing."""

    operation = "CREATE"

    def __init__(self, given: Runtime) -> None:
        self.runtime = given
        self.root: dict[str, Json] = {}

    def ensure(self, query: str) -> None:
        """Load nothing."""


def test_each_policy_is_charged_for_its_regexes() -> None:
    """Otherwise the budget of one policy depends on the work of another policy."""
    given = runtime()
    given.begin_policy("p", is_tenant=False)
    assert given.meets_regex("a*")
    assert not given.meets_regex("a*")
    given.begin_policy("q", is_tenant=False)
    assert given.meets_regex("a*")


@pytest.mark.parametrize(
    ("charge", "least"),
    [
        (lambda given: given.charge_list(0), 56),
        (lambda given: given.charge_list(100), 56 + 800),
        (lambda given: given.charge_entries(1), 64),
    ],
)
def test_byte_estimates_cover_pythons_sizes(
    charge: Callable[[Runtime], None], least: int
) -> None:
    """``least`` is sys.getsizeof of such a list, and of a map's slot and value."""
    given = runtime()
    given.begin_policy("p", is_tenant=False)
    before = given.bytes_left
    charge(given)
    assert before - given.bytes_left >= least
