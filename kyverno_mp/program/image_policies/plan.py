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

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    IMAGE_REASON_CHARACTERS_MAX,
    IMAGE_REASONS_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.scope import Begin, Images
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import make_room
from kyverno_mp.program.validating_policy.group import (
    Verdict,
    Verdicts,
    fails,
    verdict,
)
from kyverno_mp.program.validating_policy.planner import CelPlannerOf
from kyverno_mp.program.validating_policy.review_run import (
    LeftOut,
    ReviewRun,
    bound,
)
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.values.patches.json_diff import Operation


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
        begin: Begin | None,
        request: Request,
        policies: Sequence[LinkedImagePolicy],
    ) -> None:
        self._engine = engine
        self._request = request
        self._policies = policies
        self._begin = begin
        self._images = Images(begin)
        self._done: list[Verdict | None] = []
        """Verdicts by policy position; None: the policy was not evaluated or does not
        apply."""
        self.left_out: LeftOut = []
        self.needs_io = self.reads_registry = True
        self.fails = any(map(fails, policies))
        self.reads_namespace = any(policy.reads_namespace for policy in policies)

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Verdicts:
        """Evaluate all policies in order. Raises: Preempted, DeadlinePassed."""
        done: list[Verdict | None] = []
        self._done, self.left_out, self._images = done, [], Images(self._begin)
        run = ReviewRun(
            self._engine,
            self._request,
            deadline_ns,
            pace,
            self.left_out,
            reads_namespace=self.reads_namespace,
        )
        shared = ReviewShared(self._request)
        characters_left = REVIEW_MESSAGES_CHARACTERS_MAX
        for turn, linked in enumerate(self._policies, 1):
            results = run.attempt(
                turn, linked, self._results, linked, run.facts, shared
            )
            is_evaluated = results is not None
            if results is None:
                results = [
                    run.failure(result.IMAGE_VERIFY, "failed to evaluate policy")
                ]
            characters_left -= bound(results, characters_left)
            judged = verdict(linked, results, is_evaluated=is_evaluated)
            done.append(judged if results else None)
        return self.verdicts()

    def verdicts(self) -> Verdicts:
        """Return the verdicts so far, in policy order."""
        self._images.settle()
        verdicts = [each for each in tuple(self._done) if each is not None]
        return Verdicts(verdicts, [each.response for each in verdicts])

    def _results(
        self, linked: LinkedImagePolicy, facts: Facts, shared: Shared
    ) -> list[RuleResult]:
        return [
            _explained(answer.result, answer.reasons)
            for answer in linked.evaluate(facts, shared, self._images)
            if answer.result is not None
        ]

    def unfinished_failing(self) -> Iterator[PolicyIR]:
        """Yield the policies whose missing verdict denies: by their failurePolicy."""
        for linked in self._policies[len(self._done) :]:
            if fails(linked):
                yield linked.ir.policy


class DigestPlan(ImagePlan):
    """The policies whose images get digests, selected but not yet run."""

    __slots__ = ("_patch",)

    def __init__(
        self,
        engine: Engine,
        begin: Begin | None,
        request: Request,
        policies: Sequence[LinkedImagePolicy],
    ) -> None:
        super().__init__(engine, begin, request, policies)
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


class ImagePlanner(CelPlannerOf[LinkedImagePolicy, ImagePlan]):
    """Creates plans from one snapshot generation."""

    __slots__ = ("_make_digests",)

    def __init__(
        self,
        engine: Engine,
        source: CelSource[LinkedImagePolicy],
        knows: Callable[[str], bool],
        begin: Begin | None,
    ) -> None:
        """``begin`` starts the image verification of one review; None: no registry."""
        super().__init__(source, knows, partial(ImagePlan, engine, begin))
        self._make_digests = partial(DigestPlan, engine, begin)

    def of_path(
        self,
        request: Request,
        names: frozenset[str],
        pace: Pace | None,
        *,
        is_namespaced: bool,
    ) -> list[LinkedImagePolicy]:
        """Return the policies of a path that may apply, except for their selectors."""
        policies = super().of_path(request, names, pace, is_namespaced=is_namespaced)
        if pace is not None:
            make_room((each.matching for each in policies), request, pace)
        return [each for each in policies if each.may_match(request)]

    def plan_digests(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> DigestPlan | None:
        """Select the policies that add digests; otherwise as ``plan``."""
        policies = self.of_path(request, names, pace, is_namespaced=is_namespaced)
        pinning = [each for each in policies if each.ir.pins]
        return self._make_digests(request, pinning) if pinning else None


class DigestPlanner:
    """An ImagePlanner whose plans add digests."""

    __slots__ = ("plan", "require")

    def __init__(self, planner: ImagePlanner) -> None:
        self.plan = planner.plan_digests
        self.require = planner.require


def _explained(rule_result: RuleResult, reasons: Sequence[str]) -> RuleResult:
    """Add the reasons why attestors were rejected to a failure, within the limits."""
    if rule_result.status == result.FAIL:
        unique = dict.fromkeys(reasons)
        cut_reasons = [reason[:IMAGE_REASON_CHARACTERS_MAX] for reason in unique]
        rule_result.reasons = tuple(cut_reasons[:IMAGE_REASONS_MAX])
    return rule_result
