"""Evaluate the ImageValidatingPolicies that apply to one review.

Room: program. Takes: the linked policies of a path. Gives: ImagePlan and ImagePlanner,
run by webhook/review/cel_validating.py. Next: evaluate.py.
May touch: registries and the cluster, only through the ports.
Source: docs/behaviour/cel 10.4; docs/behaviour/images 8; Kyverno
pkg/webhooks/resource/ivpol/handler.go, pkg/cel/policies/ivpol/engine/engine.go.

SAFETY: upstream's validating webhook trusts an annotation that its mutating webhook is
expected to write. Here the validating webhook evaluates the policies itself, so a user
cannot forge a verdict in the object.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    ExpressionFailed,
    Preempted,
    without_frames,
)
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.limits import (
    IMAGE_REASON_CHARACTERS_MAX,
    IMAGE_REASONS_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.scope import Begin, Images
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    POLICIES_BETWEEN_CLOCK_CHECKS,
    make_room,
)
from kyverno_mp.program.validating_policy.group import DENY, Verdict, Verdicts
from kyverno_mp.program.validating_policy.plan import bound, namespace_object
from kyverno_mp.program.validating_policy.planner import CelPlannerOf
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.values.patches.json_diff import Operation

_FAIL: Final = "Fail"


class ImagePlan:
    """The policies that may apply to one request, selected but not yet run."""

    __slots__ = (
        "_begin",
        "_done",
        "_engine",
        "_images",
        "_policies",
        "_request",
        "fails",
        "left_out",
        "needs_io",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(
        self,
        engine: Engine,
        request: Request,
        policies: Sequence[LinkedImagePolicy],
        begin: Begin | None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._policies = policies
        self._begin = begin
        self._images = Images(begin)
        self._done: list[Verdict | None] = []
        """Verdicts by policy position; None: the policy was not evaluated or does not
        apply."""
        self.left_out: list[tuple[LinkedImagePolicy, Exception]] = []
        """Policies that could not be evaluated for a reason other than their
        expressions, and policies with a failed exception."""
        self.needs_io = self.reads_registry = True
        self.fails = any(map(_fails, policies))
        self.reads_namespace = any(policy.reads_namespace for policy in policies)

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Verdicts:
        """Evaluate all policies in order. Raises: Preempted, DeadlinePassed."""
        done: list[Verdict | None] = []
        self._done, self.left_out, self._images = done, [], Images(self._begin)
        request = self._request
        runtime = self._engine.open(request, deadline_ns, pace).runtime
        namespace = None
        if self.reads_namespace:
            namespace = namespace_object(self._engine, request, deadline_ns)
        ports = self._engine.cluster_data.cel
        faults: list[ExpressionFailed] = []
        facts = Facts(request, runtime, ports, namespace, is_review=True, faults=faults)
        shared = ReviewShared(request)
        characters_left = REVIEW_MESSAGES_CHARACTERS_MAX
        for turn, linked in enumerate(self._policies, 1):
            runtime.begin_policy(linked, is_tenant=bool(linked.ir.policy.namespace))
            is_evaluated = True
            try:
                if linked.matching:
                    runtime.charge(linked.matching.steps(request))
                if not turn % POLICIES_BETWEEN_CLOCK_CHECKS:
                    runtime.check_clock()
                results = self._results(linked, facts, shared)
            except Preempted:
                raise
            except Exception as error:
                if isinstance(error, DeadlinePassed) and self._is_over(runtime):
                    raise
                self.left_out.append((linked, without_frames(error)))
                is_evaluated, results = False, [_not_evaluated(error)]
            self.left_out += [(linked, fault) for fault in faults]
            faults.clear()
            characters_left -= bound(results, characters_left)
            found = _verdict(linked, results, is_evaluated=is_evaluated)
            done.append(found if results else None)
        return self.verdicts()

    def verdicts(self) -> Verdicts:
        """Return the verdicts so far, in policy order."""
        self._images.settle()
        found = [one for one in tuple(self._done) if one is not None]
        return Verdicts(found, [one.response for one in found])

    def _results(
        self, linked: LinkedImagePolicy, facts: Facts, shared: Shared
    ) -> list[RuleResult]:
        return [
            _explained(one.result, one.reasons)
            for one in linked.evaluate(facts, shared, self._images)
            if one.result is not None
        ]

    def unfinished_fails(self) -> bool:
        """Return whether a missing verdict denies because of a failurePolicy."""
        return any(map(_fails, self._policies[len(self._done) :]))

    def _is_over(self, runtime: Runtime) -> bool:
        end_ns = runtime.review_deadline_ns
        return not end_ns or self._engine.now_ns() >= end_ns


class DigestPlan(ImagePlan):
    """The policies whose images get digests, selected but not yet run."""

    __slots__ = ("_patch",)

    def __init__(
        self,
        engine: Engine,
        request: Request,
        policies: Sequence[LinkedImagePolicy],
        begin: Begin | None,
    ) -> None:
        super().__init__(engine, request, policies, begin)
        self._patch: dict[str, Operation] = {}

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Verdicts:
        """Read the digests; the verdicts have only errors. Raises: as ImagePlan.run."""
        self._patch = {}
        return super().run(deadline_ns, pace)

    @property
    def patch(self) -> list[Operation]:
        """The operations so far, one for each image."""
        return [*self._patch.values()]

    def _results(
        self, linked: LinkedImagePolicy, facts: Facts, shared: Shared
    ) -> list[RuleResult]:
        settings = self._engine.cluster_data.settings().images
        results = []
        for patch, problem in linked.pins(facts, shared, self._images, settings):
            # Several policies can select an image; the first one pins it.
            for operation in patch:
                self._patch.setdefault(operation["path"], operation)
            if problem is not None:
                results.append(problem)
        return results


class ImagePlanner(CelPlannerOf[LinkedImagePolicy]):
    """Creates plans from one snapshot generation."""

    __slots__ = ("_begin", "_engine")

    def __init__(
        self,
        engine: Engine,
        source: CelSource[LinkedImagePolicy],
        knows: Callable[[str], bool],
        begin: Begin | None,
    ) -> None:
        """``begin`` starts the image verification of one review; None: no registry."""
        super().__init__(source, knows)
        self._engine = engine
        self._begin = begin

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> ImagePlan | None:
        """Select the policies of a path; return None if none applies.

        ``names``: the policies in the path; empty: all. Raises: Preempted, as ``pace``
        does.
        """
        policies = self._selected(request, names, pace, is_namespaced=is_namespaced)
        if not policies:
            return None
        return ImagePlan(self._engine, request, policies, self._begin)

    def plan_digests(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> DigestPlan | None:
        """Select the policies that add digests; otherwise as ``plan``."""
        policies = [
            one
            for one in self._selected(request, names, pace, is_namespaced=is_namespaced)
            if one.ir.pins
        ]
        if not policies:
            return None
        return DigestPlan(self._engine, request, policies, self._begin)

    def _selected(
        self,
        request: Request,
        names: frozenset[str],
        pace: Pace | None,
        *,
        is_namespaced: bool,
    ) -> list[LinkedImagePolicy]:
        found = self.of_path(request, names, pace, is_namespaced=is_namespaced)
        if pace is not None:
            make_room((one.matching for one in found), request, pace)
        return [one for one in found if one.may_match(request)]


class DigestPlanner:
    """An ImagePlanner whose plans add digests."""

    __slots__ = ("plan", "require")

    def __init__(self, planner: ImagePlanner) -> None:
        self.plan = planner.plan_digests
        self.require = planner.require


def _fails(linked: LinkedImagePolicy) -> bool:
    """Return whether a request is denied when the policy cannot be evaluated."""
    return linked.ir.policy.failure_policy == _FAIL and DENY in linked.ir.actions


def _verdict(
    linked: LinkedImagePolicy, results: list[RuleResult], *, is_evaluated: bool
) -> Verdict:
    """Return the verdict of a policy.

    KYVERNO: any error denies, regardless of the failurePolicy. This includes registry
    errors: otherwise the owner of a registry could bypass a policy by not responding.
    """
    enforces = DENY in linked.ir.actions
    response = PolicyResponse(
        linked.ir.policy, results, "Enforce" if enforces else "Audit"
    )
    denies = enforces if is_evaluated else _fails(linked)
    return Verdict(response, linked.ir.actions, denies)


def _explained(rule_result: RuleResult, reasons: Sequence[str]) -> RuleResult:
    """Add the reasons why attestors were rejected to a failure, within the limits."""
    if rule_result.status == result.FAIL:
        given = dict.fromkeys(reasons)
        shown = [one[:IMAGE_REASON_CHARACTERS_MAX] for one in given]
        rule_result.reasons = tuple(shown[:IMAGE_REASONS_MAX])
    return rule_result


def _not_evaluated(error: Exception) -> RuleResult:
    """Return the error of a policy that could not be evaluated."""
    message = "internal error, see the log"
    if isinstance(error, Error):
        message = f"{error.message} ({error.code})"
    return RuleResult(
        "evaluation",
        result.IMAGE_VERIFY,
        result.ERROR,
        cut(f"failed to evaluate policy: {message}"),
    )
