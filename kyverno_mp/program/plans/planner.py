"""Look up the policies that may apply to a request, and cache the result.

Room: program. Takes: Request, a RuleSource, a function to prepare a selection. Gives: a
plan. Next: program/plans/plan.py, program/plans/mutation_plan.py, which define the
rules and the plan.
Source: docs/behaviour/controllers 2.5.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import CANDIDATE_MEMO_ENTRIES_MAX, INLINE_LINK_BYTES_MAX
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.matching.candidates import RuleSource
from kyverno_mp.program.matching.rule_ref import PolicyCandidates
from kyverno_mp.program.request import Request

Linked = TypeVar("Linked")
Prepared = TypeVar("Prepared")
PlanT = TypeVar("PlanT")
Picked: TypeAlias = list[tuple[PolicyIR, list[Linked]]]
"""The policies of a path in order, each with its rules that may match."""
SLOW: Final = EFFECT_CLUSTER | EFFECT_REGISTRY
"""Effects of rules that may make an external call."""


class PlannerOf(Generic[Linked, Prepared, PlanT]):
    """Creates plans from one rule source; a new snapshot generation gets a new one."""

    __slots__ = ("_engine", "_make", "_memo", "_prepare", "_source")

    def __init__(
        self,
        engine: Engine,
        source: RuleSource[Linked],
        prepare: Callable[
            [Picked[Linked], Sequence[PolicyCandidates[Linked]]], Prepared | None
        ],
        make: Callable[[Engine, Request, Prepared], PlanT],
    ) -> None:
        """``prepare`` does the common work for all requests with these candidates.

        It takes the policies of the path, and the candidates of other paths.
        """
        self._engine = engine
        self._source = source
        self._prepare = prepare
        self._make = make
        self._memo: dict[
            tuple[int, frozenset[str], str],
            # Keeps the candidates alive, so the id() in the key remains valid.
            tuple[Sequence[PolicyCandidates[Linked]], Prepared | None],
        ] = {}

    def plan(
        self,
        request: Request,
        failure_policies: frozenset[str],
        policy_key: str,
        pace: Pace | None = None,
    ) -> PlanT | None:
        """Select the candidates, and link the rules that are not linked yet.

        ``policy_key``: "" selects all policies with ``failure_policies``, any other key
        a single policy. Return None if no policy applies. Raises: Preempted, as
        ``pace`` does; rules linked so far stay linked.
        """
        candidates = self._source.candidates(request)
        if not candidates:
            return None
        key = (id(candidates), failure_policies, policy_key)
        memoized = self._memo.get(key)
        if memoized is None:
            if len(self._memo) >= CANDIDATE_MEMO_ENTRIES_MAX:
                self._memo.clear()
            if pace is not None:
                self._link(candidates, pace)
            picked, elsewhere = _pick(candidates, failure_policies, policy_key)
            memoized = self._memo[key] = candidates, self._prepare(picked, elsewhere)
        prepared = memoized[1]
        if prepared is None:
            return None
        return self._make(self._engine, request, prepared)

    def _link(self, candidates: Sequence[PolicyCandidates[Linked]], pace: Pace) -> None:
        """Link rule by rule, and check the clock, because there may be thousands.

        Only one thread links at a time: threads that link the same rules would multiply
        the time and the number of objects, all of which a garbage collection visits.
        """
        for candidate in candidates:
            for ref in candidate.rules:
                size = ref.unlinked_bytes
                if not size:
                    continue
                if size > INLINE_LINK_BYTES_MAX:
                    # Even a full slice is too short to link this rule.
                    pace.make_room()
                else:
                    pace.next_slice(self._engine.now_ns())
                lock = self._engine.linking
                if lock is not None and not lock.acquire(blocking=False):
                    # The event loop never waits; here it hands the review to a thread.
                    pace.make_room()
                    lock.acquire()
                try:
                    _ = ref.linked
                finally:
                    if lock is not None:
                        lock.release()


def _pick(
    candidates: Sequence[PolicyCandidates[Linked]],
    failure_policies: frozenset[str],
    key: str,
) -> tuple[Picked[Linked], list[PolicyCandidates[Linked]]]:
    picked: Picked[Linked] = []
    other_candidates: list[PolicyCandidates[Linked]] = []
    for candidate in candidates:
        policy = candidate.policy
        # A path for one policy selects that policy, regardless of its suffix.
        elsewhere = (
            policy.key != key if key else policy.failure_policy not in failure_policies
        )
        if policy.admission and elsewhere:
            other_candidates.append(candidate)
        elif policy.admission:
            picked.append((policy, [ref.linked for ref in candidate.rules]))
    return picked, other_candidates
