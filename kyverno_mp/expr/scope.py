"""Provide the data and the budget of expressions while one rule runs on one request.

Room: expr. Takes: the JSON context built by program/context. Gives: Scope and Runtime,
which every linked closure of expr/ receives. Next: template, conditions, pattern,
foreach.
May touch: nothing outside its arguments; the clock is passed in.
Source: docs/behaviour/engine 0.2 (numbers), 3 (variables and context).

The step budgets and the deadline of a review are enforced here: code charges steps
before it does the work, and every STEPS_BETWEEN_CLOCK_CHECKS steps the clock is
checked.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

from kyverno_mp.errors import BudgetExceeded, DeadlinePassed
from kyverno_mp.limits import (
    CLUSTER_STEPS_MAX,
    EXPRESSION_BYTES_MAX,
    HEAVY_STEPS,
    NS_PER_STEP,
    POLICY_STEPS_MAX,
    STEPS_BETWEEN_CLOCK_CHECKS,
    TENANT_STEPS_MAX,
    TENANT_TIME_DIVISOR,
)
from kyverno_mp.values.effort import (
    CHARACTERS_PER_STEP,
    ENTRY_BYTES,
    LIST_BYTES,
    POINTER_BYTES,
    PRINTED_PER_STEP,
    width_of,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import ImageSettings

_REGEXES_MET_MAX: Final = 64
"""The maximum number of regular expressions recorded as charged, per policy."""
FEW_ITEMS: Final = 16
"""A list of at most this size is built without charging bytes, because the step per
item limits the number of such lists."""


class Bindings(Protocol):
    """The values of ``$name``; names include the dollar sign."""

    def get(self, name: str, default: Json, /) -> Json:
        """Return the value of ``$name``, or ``default`` if it is not bound."""


class Pace(Protocol):
    """How long one evaluation may occupy its thread before it yields to others.

    The pace knows the end of its slice and moves it. However often its callers call,
    and however old the end that they remember, a slice of work costs one turn.
    """

    @property
    def slice_ends_ns(self) -> int:
        """The end of the current time slice; a value of ``monotonic_ns()``."""

    def next_slice(self, now_ns: int, /) -> None:
        """Yield if the slice has ended at ``now_ns``. Raises: Preempted."""

    def make_room(self) -> None:
        """Yield before work that fits into no slice of the event loop.

        Raises: Preempted on the event loop.
        """


class Runtime:
    """The budget of the rules of one request, and their environment.

    Steps are counted per policy: each policy gets at most POLICY_STEPS_MAX of the steps
    left for its kind, so neither many rules nor many policies make a review longer.
    Namespaced policies, which any tenant can create, have separate steps and time, so
    they never use the budget of a cluster policy. Bytes are counted per rule.

    ``ints_are_numbers``: True on an admission request, where Kyverno's JSON context
    stores every number as float64, so a Python int counts as a number; False for int64
    data (CLI, background, from the second matched rule of a policy on), where JMESPath
    does not accept an int as a number (docs/behaviour/engine 0.2). JMESPath literals
    are floats. ``deadline_ns``: value of ``monotonic_ns()`` after which ``charge``
    raises, or 0. ``pace``: called for more time at the end of each slice; None disables
    slices. ``random_bytes``: source of ``random()``; None makes that function fail.
    ``resolve_host``: returns the addresses of a DNS name for ``is_external_url``, or
    raises DependencyError; None means that no name can be resolved.
    ``images``: returns the operator's default registry.
    ``keeps_bytes``: decoded bytes that are not UTF-8 stay in strings as lone
    surrogates; otherwise each becomes U+FFFD, because a response can contain only valid
    text. ``bindings``: the values of ``$name`` in assertion trees, or None; any object
    with ``get(name, default)``, so values can be computed on demand.
    """

    __slots__ = (
        "_check_below",
        "_cluster_steps",
        "_granted",
        "_is_tenant",
        "_limit_ns",
        "_pace",
        "_regexes",
        "_slice_ends_ns",
        "_tenant_began_ns",
        "_tenant_ns",
        "_tenant_steps",
        "bindings",
        "bytes_left",
        "deadline_ns",
        "exception_steps",
        "images",
        "ints_are_numbers",
        "keeps_bytes",
        "monotonic_ns",
        "now",
        "observer",
        "policy",
        "random_bytes",
        "resolve_host",
        "review_deadline_ns",
        "steps_left",
    )

    def __init__(  # noqa: PLR0913 - one record of independent facts, keyword-only
        self,
        *,
        now: Callable[[], datetime],
        monotonic_ns: Callable[[], int],
        ints_are_numbers: bool = False,
        deadline_ns: int = 0,
        pace: Pace | None = None,
        steps: int = POLICY_STEPS_MAX,
        bytes_max: int = EXPRESSION_BYTES_MAX,
        random_bytes: Callable[[int], bytes] | None = None,
        resolve_host: Callable[[str], list[str]] | None = None,
        images: Callable[[], ImageSettings] = ImageSettings,
        keeps_bytes: bool = False,
    ) -> None:
        self.now = now
        self.monotonic_ns = monotonic_ns
        self.ints_are_numbers = ints_are_numbers
        self.keeps_bytes = keeps_bytes
        self.deadline_ns = self.review_deadline_ns = deadline_ns
        """The deadline of the running policy, which ports receive, too; the deadline of
        the review."""
        self.observer: Callable[[object], None] | None = None
        self._pace = pace
        self._slice_ends_ns = 0 if pace is None else pace.slice_ends_ns
        self.policy: object = None
        """The running policy, as passed to ``begin_policy``."""
        self._cluster_steps = CLUSTER_STEPS_MAX
        self._tenant_steps = TENANT_STEPS_MAX
        self._tenant_ns: int | None = None
        """The time left for namespaced policies; None before the first one runs."""
        self._tenant_began_ns = 0
        self._is_tenant = False
        self.steps_left = self._granted = steps
        self.bytes_left = bytes_max
        self.exception_steps = 0
        """The steps that exceptions from policies have spent."""
        self._limit_ns = 0
        self._set_limit()
        self._check_below = steps - STEPS_BETWEEN_CLOCK_CHECKS if self._limit_ns else 0
        self.random_bytes = random_bytes
        self.resolve_host = resolve_host
        self.images = images
        self.bindings: Bindings | None = None
        self._regexes: set[str] | None = None

    def begin_policy(self, policy: object, *, is_tenant: bool) -> None:
        """Assign steps to a policy, and time to a namespaced one.

        A policy that runs again to explain its result gets steps of the same pool.
        """
        if self.observer is not None:
            self.observer(policy)
        spent = self._granted - self.steps_left
        if self._is_tenant:
            self._end_tenant(spent)
        else:
            self._cluster_steps -= spent
        self.policy = policy
        self._regexes = None
        self._is_tenant = is_tenant
        steps_left = self._tenant_steps if is_tenant else self._cluster_steps
        # PERF: a comparison, because ``min`` is a call.
        if steps_left > POLICY_STEPS_MAX:  # noqa: PLR1730 - as above
            steps_left = POLICY_STEPS_MAX
        self.steps_left = self._granted = steps_left
        self.bytes_left = EXPRESSION_BYTES_MAX
        if is_tenant and self.review_deadline_ns:
            self._begin_tenant_time()
        if self._limit_ns:
            self._check_below = steps_left - STEPS_BETWEEN_CLOCK_CHECKS

    def with_int64(self) -> "Runtime":
        """Return a budget with the remaining steps and bytes, for int64 data.

        Deadline and time slices are shared. At the end, the caller copies
        ``steps_left`` and ``bytes_left`` back.
        """
        return Runtime(
            now=self.now,
            monotonic_ns=self.monotonic_ns,
            deadline_ns=self.deadline_ns,
            pace=self._pace,
            steps=self.steps_left,
            bytes_max=self.bytes_left,
            random_bytes=self.random_bytes,
            resolve_host=self.resolve_host,
            images=self.images,
        )

    def set_aside(self) -> tuple[int, int]:
        """Return the steps and the bytes left, for ``restore``."""
        return self.steps_left, self.bytes_left

    def restore(self, rest: tuple[int, int]) -> None:
        """Refund the steps and bytes that an exception spent since ``set_aside``."""
        self.exception_steps += rest[0] - self.steps_left
        self.steps_left, self.bytes_left = rest
        if self._limit_ns:
            # Otherwise the clock would not be checked until as many steps are spent
            # again.
            self._check_below = max(self.steps_left - STEPS_BETWEEN_CLOCK_CHECKS, 0)

    def begin_rule(self) -> None:
        """Assign bytes to the next rule of the policy; steps belong to the policy."""
        self.bytes_left = EXPRESSION_BYTES_MAX

    def charge(self, steps: int = 1) -> None:
        """Charge steps. Raises: BudgetExceeded, DeadlinePassed."""
        steps_left = self.steps_left = self.steps_left - steps
        if steps_left <= self._check_below:
            self._check(steps_left)

    def check_clock(self) -> None:
        """Raise DeadlinePassed after the deadline, regardless of the steps spent.

        Raises also: BudgetExceeded if the time for namespaced policies is used up;
        Preempted if this thread has no more time for the request.
        """
        if self._limit_ns:
            now_ns = self.monotonic_ns()
            if now_ns > self._limit_ns:
                self._past_limit(now_ns)

    def before_waiting(self) -> None:
        """Yield to others before waiting for an external call.

        Raises: Preempted on the event loop, which must not block. A rule that declares
        the effect never runs there, but an expression built from variables declares no
        effects.
        """
        if self._pace is not None:
            self._pace.make_room()
            self._begin_slice()

    def _check(self, steps_left: int) -> None:
        """Check the budget and the clock."""
        if steps_left < 0:
            raise BudgetExceeded("expr.steps", "expression exceeded its step budget")
        if self._limit_ns:
            ahead = self._check_below - steps_left
            self._check_below = max(steps_left - STEPS_BETWEEN_CLOCK_CHECKS, 0)
            self.check_clock()
            if ahead > HEAVY_STEPS and self._pace is not None:
                self._make_room(ahead)

    def _make_room(self, steps: int) -> None:
        """Request more time before work that takes longer than the slice."""
        assert self._pace is not None
        if self.monotonic_ns() + steps * NS_PER_STEP > self._slice_ends_ns:
            self._pace.make_room()
            self._begin_slice()

    def _past_limit(self, now_ns: int) -> None:
        """Raise after the deadline; otherwise the slice has ended: request another."""
        if 0 < self.deadline_ns < now_ns:
            if now_ns <= self.review_deadline_ns:
                raise BudgetExceeded(
                    "expr.time", "namespaced policies exceeded their time"
                )
            raise DeadlinePassed("expr.deadline", "the request's deadline has passed")
        assert self._pace is not None
        self._pace.next_slice(now_ns)
        self._begin_slice()

    def _begin_slice(self) -> None:
        """Continue until the end of the pace's current slice."""
        assert self._pace is not None
        self._slice_ends_ns = self._pace.slice_ends_ns
        self._set_limit()

    def _set_limit(self) -> None:
        """Set the time limit: the deadline or the end of the slice, if it is earlier.

        PERF: the clock costs more than the rest of a charge; it is read once per
        STEPS_BETWEEN_CLOCK_CHECKS steps, and by callers that run many cheap rules.
        """
        times = self.deadline_ns, self._slice_ends_ns
        self._limit_ns = min(times) or max(times)

    def _end_tenant(self, spent: int) -> None:
        """Subtract a namespaced policy's steps from the total for such policies."""
        self._tenant_steps -= spent
        if self._tenant_ns is not None:
            self._tenant_ns -= self.monotonic_ns() - self._tenant_began_ns
            self.deadline_ns = self.review_deadline_ns
            self._set_limit()

    def _begin_tenant_time(self) -> None:
        self._tenant_began_ns = self.monotonic_ns()
        if self._tenant_ns is None:
            left_ns = max(0, self.review_deadline_ns - self._tenant_began_ns)
            self._tenant_ns = left_ns // TENANT_TIME_DIVISOR
        self.deadline_ns = self._tenant_began_ns + max(0, self._tenant_ns)
        self._set_limit()

    def charge_bytes(self, count: int) -> None:
        """Charge the bytes of a string before building it. Raises: BudgetExceeded."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise BudgetExceeded("expr.bytes", "expression exceeded its byte budget")

    def charge_items(self, count: int) -> None:
        """Charge a new list: a step and a pointer per item."""
        # PERF: ``charge`` is inlined; steps limit the memory of short lists.
        steps_left = self.steps_left = self.steps_left - count
        if steps_left <= self._check_below:
            self._check(steps_left)
        if count > FEW_ITEMS:
            self.charge_bytes(count * POINTER_BYTES)

    def charge_list(self, count: int) -> None:
        """Charge a new list with its bytes, even if it is short."""
        self.bytes_left -= LIST_BYTES + count * POINTER_BYTES
        steps_left = self.steps_left = self.steps_left - count
        if steps_left <= self._check_below or self.bytes_left < 0:
            self.charge_bytes(0)
            self._check(steps_left)

    def charge_entries(self, count: int) -> None:
        """Charge a new map: a step and a slot per entry."""
        self.bytes_left -= count * ENTRY_BYTES
        steps_left = self.steps_left = self.steps_left - count
        if steps_left <= self._check_below or self.bytes_left < 0:
            self.charge_bytes(0)
            self._check(steps_left)

    def meets_regex(self, pattern: str) -> bool:
        """Return whether the policy uses a regular expression for the first time.

        The first use is charged for compiling, even if this worker has cached the
        expression, because the budget of a policy must not depend on other requests.
        """
        met = self._regexes
        if met is None or len(met) >= _REGEXES_MET_MAX:
            self._regexes = {pattern}
            return True
        if pattern in met:
            return False
        met.add(pattern)
        return True

    def charge_read(self, *strings: str) -> None:
        """Charge one pass over strings."""
        self.charge(sum(map(len, strings)) // CHARACTERS_PER_STEP)

    def charge_printed(self, length: int) -> None:
        """Charge for printing this many characters, or items of a container."""
        self.charge(1 + 2 * length // PRINTED_PER_STEP)
        self.charge_bytes(2 * length)

    def charge_made(self, length: int, like: str) -> None:
        """Charge a string of ``length`` characters with the width of ``like``."""
        self.charge(length // CHARACTERS_PER_STEP)
        self.charge_bytes(length * width_of(like))


class Scope(Protocol):
    """The JSON context of one rule on one request, as used by expressions.

    The implementation is ``program/context/rule_context.py``. ``root`` is the dict that
    JMESPath queries start from, e.g. ``{"request": {...}, "element": {...}}``; it is
    complete for a query only after a call of ``ensure`` with the query's text, because
    context entries and ``images`` are loaded lazily (docs/behaviour/engine 3.7).
    """

    root: dict[str, Json]
    runtime: Runtime
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT; templates rewrite request.object on DELETE."""

    def ensure(self, query: str) -> None:
        """Load deferred entries that ``query`` mentions. Raises: ExpressionFailed."""
