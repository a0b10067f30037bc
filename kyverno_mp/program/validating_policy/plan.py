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
    Error,
    ExpressionFailed,
    Preempted,
    without_frames,
)
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.limits import (
    CANDIDATE_PLANS_MAX,
    LINKED_RULES_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import kind_of
from kyverno_mp.program.bodies.outcome import cut, shortened
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.matching.rule_ref import Ahead
from kyverno_mp.program.recall.verdicts import Key
from kyverno_mp.program.request import Request, RequestKind
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    POLICIES_BETWEEN_CLOCK_CHECKS,
    make_room,
)
from kyverno_mp.program.validating_policy.evaluate import (
    PASSED,
    SKIPPED,
    LinkedValidatingPolicy,
)
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
    CelPlannerOf,
    is_in_namespace,
    is_namespace,
)
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
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
        self.left_out: list[tuple[LinkedValidatingPolicy, Exception]] = []
        """These policies with the reasons, and policies with a failed exception."""
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
        key, known = self._recalled(shared.object)
        if known is not None and not group.others:
            return group.verdicts(known)
        try:
            members = group.in_turn if known is None else group.others
            self._evaluate(members, shared, deadline_ns, pace)
        except DeadlinePassed:
            if known is not None:
                group.fill(done, known)
            raise
        if known is None and key is not None and self._characters_left > 0:
            learned = group.recalled(done)
            if learned is not None:
                self._engine.verdicts.keep(key, learned)
        outcome = group.outcome(done, known)
        if outcome is not None:
            return group.verdicts(outcome)
        if known is not None:
            group.fill(done, known)
        return self.verdicts()

    def _evaluate(
        self,
        members: Sequence[Member],
        shared: ReviewShared,
        deadline_ns: int,
        pace: Pace | None,
    ) -> None:
        """Evaluate those of the members that were not evaluated before."""
        request, done = self._request, self._done
        runtime = self._engine.open(request, deadline_ns, pace).runtime
        ports = self._engine.cluster_data.cel
        namespace = None
        if self.reads_namespace:
            namespace = namespace_object(self._engine, request, deadline_ns)
        faults: list[ExpressionFailed] = []
        facts = Facts(request, runtime, ports, namespace, is_review=True, faults=faults)
        for turn, (at, linked, bodies, _, _) in enumerate(members, 1):
            if done[at] is not None:
                continue
            runtime.begin_policy(linked, is_tenant=bool(linked.ir.policy.namespace))
            try:
                if linked.matching:
                    runtime.charge(linked.matching.steps(request))
                if not turn % POLICIES_BETWEEN_CLOCK_CHECKS:
                    runtime.check_clock()
                results = linked.results(bodies, facts, shared)
            except Preempted:
                raise
            except Exception as error:
                if isinstance(error, DeadlinePassed) and self._is_over(runtime):
                    raise
                self._failed.add(at)
                self.left_out.append((linked, without_frames(error)))
                results = [_not_evaluated(error)]
            done[at] = results
            if faults:
                self.left_out += [(linked, fault) for fault in faults]
                faults.clear()
            self._characters_left -= bound(results, self._characters_left)

    def _recalled(self, target: Json) -> tuple[Key | None, Outcome | None]:
        """Return the cache key, and the cached outcome of an equal object."""
        recall = self._group.recall
        key = None if recall is None else recall.key(self._request, target)
        if key is None or recall is None:
            return None, None
        known = self._engine.verdicts.find(key)
        recall.count(known)
        return key, known

    def verdicts(self) -> Verdicts:
        """Return the verdicts so far, in policy order."""
        found = [
            verdict(one.linked, results, is_evaluated=one.at not in self._failed)
            for one, results in zip(self._group.members, self._done, strict=False)
            if results
        ]
        return Verdicts(found, [one.response for one in found])

    def unfinished_fails(self) -> bool:
        """Return whether a missing verdict denies because of a failurePolicy."""
        done = {at for at, results in enumerate(self._done) if results is not None}
        return any(
            fails(member.linked)
            for member in self._group.members
            if member.at not in done
        )

    def _is_over(self, runtime: Runtime) -> bool:
        end_ns = runtime.review_deadline_ns
        return not end_ns or self._engine.now_ns() >= end_ns


def namespace_object(engine: Engine, request: Request, deadline_ns: int) -> Json:
    """Return ``namespaceObject``; None for a cluster-scoped object.

    A Namespace that is being created does not exist in the cluster yet.
    """
    objects = engine.cluster_data.cel.namespaces
    if not request.namespace or objects is None:
        return None
    if is_namespace(request) and request.operation == "CREATE":
        return None
    found = objects.namespace(request.namespace, deadline_ns)
    return None if found is None else {"spec": {}, "status": {}, **found}


class CelPlanner(CelPlannerOf[LinkedValidatingPolicy]):
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
        asked = (kind_of(request), namespace, names)
        group = self._groups.get(asked)
        if group is None:
            found = self._source.candidates(request, namespace, pace)
            named = [one for one in found if not names or one.ir.policy.name in names]
            if pace is not None:
                make_room((one.grouping for one in named), request, pace)
            group = Group(named, request, self._outcomes)
            self._keep(asked, group)
        group.is_used = True
        return CelPlan(self._engine, request, group) if group.members else None

    def take_over(self, previous: "CelPlanner") -> list[object]:
        """Keep nothing: a group belongs to one generation."""
        del previous
        return []

    def ahead(self, previous: "CelPlanner | None") -> Iterator[Ahead]:
        """Yield the groups that reviews used, to be made before reviews need them."""
        for asked in () if previous is None else previous.used():
            yield Ahead(0, partial(self._prepare, asked))

    def used(self) -> list[_Asked]:
        """Return the kinds, namespaces and names of the reviews so far."""
        # Copy first: reviews add groups at the same time.
        groups = list(self._groups.items())
        return [asked for asked, group in groups if group.is_used]

    def _prepare(self, asked: _Asked) -> None:
        kind, namespace, names = asked
        request = request_of(kind, namespace)
        if not self._source.is_linked(request, namespace):
            # There are too many to link ahead.
            return
        found = self._source.candidates(request, namespace, None)
        named = [one for one in found if not names or one.ir.policy.name in names]
        self._keep(asked, Group(named, request, self._outcomes))

    def _keep(self, asked: _Asked, group: Group) -> None:
        is_full = len(self._groups) >= CANDIDATE_PLANS_MAX
        if is_full or self._kept > LINKED_RULES_MAX:
            self._groups, self._kept = {}, 0
        self._groups[asked] = group
        self._kept += len(group.members)


def bound(results: Sequence[RuleResult], left: int) -> int:
    """Shorten messages beyond the review's limit; return their number of characters."""
    count = 0
    for each in results:
        if each is PASSED or each is SKIPPED:
            continue
        texts = (each.message, *each.properties.values())
        count += sum(map(len, texts))
        if count > left:
            each.message = shortened(each.message)
            each.properties = {
                name: shortened(text) for name, text in each.properties.items()
            }
    return count


def _not_evaluated(error: Exception) -> RuleResult:
    """Return the error of a policy that could not be evaluated."""
    message = "internal error, see the log"
    if isinstance(error, Error):
        message = f"{error.message} ({error.code})"
    return RuleResult(
        "evaluation",
        result.VALIDATION,
        result.ERROR,
        cut(f"failed to load context: {message}"),
    )
