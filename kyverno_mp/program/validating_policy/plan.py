"""Evaluate the CEL policies that apply to one review.

Room: program. Takes: the linked policies of source.py, the policy names in a path.
Gives: CelPlan and CelPlanner, run by webhook/review/cel_validating.py. Next:
evaluate.py.
May touch: the cluster only through the ports of CEL.
Source: docs/behaviour/cel 3, 6; Kyverno pkg/webhooks/resource/vpol/handler.go.

Pure policies run before policies that may wait for calls, so a slow call takes no time
from them. A policy that cannot be evaluated affects no other policy.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from kyverno_mp.errors import (
    DeadlinePassed,
)
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    CANDIDATE_PLANS_MAX,
    LINKED_RULES_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import kind_of
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.matching.rule_ref import Ahead
from kyverno_mp.program.recall.verdicts import Key
from kyverno_mp.program.request import Request, RequestKind
from kyverno_mp.program.validating_policy.constraints import make_room
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.group import (
    Done,
    Group,
    Member,
    Outcome,
    Outcomes,
    Verdicts,
    fails,
    request_of,
    verdict,
)
from kyverno_mp.program.validating_policy.planner import (
    PathPolicies,
    is_in_namespace,
)
from kyverno_mp.program.validating_policy.review_run import (
    LeftOut,
    ReviewRun,
    bound,
)
from kyverno_mp.program.validating_policy.scope import ReviewShared
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.values.jsonvalue import Json

WARN: Final = "Warn"
_Asked: TypeAlias = tuple[RequestKind, str, frozenset[str]]
"""The kind of a request, the namespace of namespaced policies, the names in a path."""


class CelPlan:
    """The policies that may apply to one request, selected but not yet run."""

    __slots__ = (
        "_characters_left",
        "_done",
        "_engine",
        "_failed",
        "_group",
        "_request",
        "_shared",
        "fails",
        "left_out",
        "needs_io",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(self, engine: Engine, request: Request, group: Group) -> None:
        self._engine = engine
        self._request = request
        self._group = group
        self._done: Done = [None] * len(group.members)
        self._shared: ReviewShared | None = None
        self._characters_left = REVIEW_MESSAGES_CHARACTERS_MAX
        self._failed: set[int] = set()
        """Positions of policies that could not be evaluated for a reason other than
        expressions."""
        self.left_out: LeftOut = []
        self.needs_io = group.needs_io
        self.fails = group.fails
        self.reads_namespace = group.reads_namespace
        self.reads_registry = group.reads_registry

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Verdicts:
        """Evaluate all policies. Raises: Preempted, DeadlinePassed.

        After Preempted, a second call evaluates the policies that are left.
        """
        group, done = self._group, self._done
        shared = self._shared = self._shared or ReviewShared(self._request)
        key, recalled = self._recalled(shared.object)
        if recalled is not None and not group.others:
            return group.verdicts(recalled)
        try:
            members = group.in_turn if recalled is None else group.others
            self._evaluate(members, shared, deadline_ns, pace)
        except DeadlinePassed:
            if recalled is not None:
                group.fill(done, recalled)
            raise
        if recalled is None and key is not None and self._characters_left > 0:
            learned = group.recalled(done)
            if learned is not None:
                self._engine.verdicts.keep(key, learned)
        outcome = group.outcome(done, recalled)
        if outcome is not None:
            return group.verdicts(outcome)
        if recalled is not None:
            group.fill(done, recalled)
        return self.verdicts()

    def _evaluate(
        self,
        members: Sequence[Member],
        shared: ReviewShared,
        deadline_ns: int,
        pace: Pace | None,
    ) -> None:
        """Evaluate those of the members that were not evaluated before."""
        done = self._done
        run = ReviewRun(
            self._engine,
            self._request,
            deadline_ns,
            pace,
            self.left_out,
            reads_namespace=self.reads_namespace,
        )
        attempt, facts = run.attempt, run.facts
        for turn, (at, linked, bodies, _, _) in enumerate(members, 1):
            if done[at] is not None:
                continue
            results = attempt(turn, linked, linked.results, bodies, facts, shared)
            if results is None:
                self._failed.add(at)
                results = [run.failure(result.VALIDATION, "failed to load context")]
            done[at] = results
            self._characters_left -= bound(results, self._characters_left)

    def _recalled(self, target: Json) -> tuple[Key | None, Outcome | None]:
        """Return the cache key, and the cached outcome of an equal object."""
        recall = self._group.recall
        key = None if recall is None else recall.key(self._request, target)
        if key is None or recall is None:
            return None, None
        outcome = self._engine.verdicts.find(key)
        recall.count(outcome)
        return key, outcome

    def verdicts(self) -> Verdicts:
        """Return the verdicts so far, in policy order."""
        verdicts = [
            verdict(each.linked, results, is_evaluated=each.at not in self._failed)
            for each, results in zip(self._group.members, self._done, strict=False)
            if results
        ]
        return Verdicts(verdicts, [each.response for each in verdicts])

    def unfinished_failing(self) -> Iterator[PolicyIR]:
        """Yield the policies whose missing verdict denies: by their failurePolicy."""
        done = {at for at, results in enumerate(self._done) if results is not None}
        for member in self._group.members:
            if member.at not in done and fails(member.linked):
                yield member.linked.ir.policy


class CelPlanner(PathPolicies[LinkedValidatingPolicy]):
    """Creates plans from one snapshot generation."""

    __slots__ = ("_engine", "_groups", "_kept", "_outcomes")

    def __init__(
        self,
        engine: Engine,
        source: CelSource[LinkedValidatingPolicy],
        knows: Callable[[str], bool],
    ) -> None:
        super().__init__(source, knows)
        self._engine = engine
        self._groups: dict[_Asked, Group] = {}
        self._outcomes: Outcomes = {}
        self._kept = 0
        """Number of members in all groups."""

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> CelPlan | None:
        """Select the policies of a path; return None if none applies.

        ``names``: the policies in the path; empty: all. Raises: Preempted, as ``pace``
        does.
        """
        if is_namespaced and not is_in_namespace(request):
            return None
        namespace = request.namespace if is_namespaced else ""
        key = (kind_of(request), namespace, names)
        group = self._groups.get(key)
        if group is None:
            named = self._named(request, namespace, names, pace)
            if pace is not None:
                make_room((each.grouping for each in named), request, pace)
            group = Group(named, request, self._outcomes)
            self._keep(key, group)
        group.is_used = True
        return CelPlan(self._engine, request, group) if group.members else None

    def take_over(self, previous: "CelPlanner") -> list[object]:
        """Keep nothing: a group belongs to one generation."""
        del previous
        return []

    def ahead(self, previous: "CelPlanner | None") -> Iterator[Ahead]:
        """Yield the groups that reviews used, to be made before reviews need them."""
        for key in () if previous is None else previous.used():
            yield Ahead(0, partial(self._prepare, key))

    def used(self) -> list[_Asked]:
        """Return the kinds, namespaces and names of the reviews so far."""
        # Copy first: reviews add groups at the same time.
        groups = list(self._groups.items())
        return [key for key, group in groups if group.is_used]

    def _prepare(self, key: _Asked) -> None:
        kind, namespace, names = key
        request = request_of(kind, namespace)
        if not self._source.is_linked(request, namespace):
            # There are too many to link ahead.
            return
        named = self._named(request, namespace, names, None)
        self._keep(key, Group(named, request, self._outcomes))

    def _keep(self, key: _Asked, group: Group) -> None:
        is_full = len(self._groups) >= CANDIDATE_PLANS_MAX
        if is_full or self._kept > LINKED_RULES_MAX:
            self._groups, self._kept = {}, 0
        self._groups[key] = group
        self._kept += len(group.members)
