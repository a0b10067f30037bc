"""Evaluate ImageValidatingPolicies on a request or on a JSON payload.

Room: program. Takes: ImageValidatingPolicyIR linked once; Facts, PolicyImages. Gives:
an Answer for the policy and for each of its autogen copies. Next: plan.py,
cli/apply/stages/image_policies.py.
May touch: external systems only through ports.
Source: docs/behaviour/cel 10.4; docs/behaviour/images 8; Kyverno
pkg/image/verification/evaluator/policy.go, pkg/cel/policies/ivpol/engine/engine.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
)
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.dialect import dialect_of, of_conditions
from kyverno_mp.program.image_policies.digests import pinned, tagged_images
from kyverno_mp.program.image_policies.references import extracted, extractors_for
from kyverno_mp.program.image_policies.scope import Body, Images, ImageScope
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    MatchingCost,
    fault_or_match,
    is_by_kind,
)
from kyverno_mp.program.validating_policy.evaluate import annotated, message_of
from kyverno_mp.program.validating_policy.exceptions import (
    LinkedException,
    applying,
    link_exceptions,
)
from kyverno_mp.program.validating_policy.reads import reads_namespace
from kyverno_mp.program.validating_policy.scope import Facts, met
from kyverno_mp.program.validating_policy.templates import Judge, of_pods
from kyverno_mp.values.kubernetes.image import ImageSettings
from kyverno_mp.values.patches.json_diff import Operation

_EXCEPTION: Final = "rule is skipped due to policy exception: "


class Answer(NamedTuple):
    """The verdict of one copy of a policy, if the copy has one.

    ``is_matched``: the constraints match. ``reasons``: why attestors were rejected.
    """

    copy: str
    result: RuleResult | None
    is_matched: bool
    reasons: tuple[str, ...] = ()


class LinkedImagePolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = (
        "_bodies",
        "_dialect",
        "_exceptions",
        "ir",
        "matching",
        "reads_namespace",
    )
    is_derived = False
    """Registries change, so no scan reproduces the results of a review."""

    def __init__(
        self,
        ir: ImageValidatingPolicyIR,
        *,
        full_policy: ImageValidatingPolicyIR | None = None,
    ) -> None:
        """``full_policy``: the whole policy, if ``ir`` is only a part of it."""
        self.ir = full_policy or ir
        self.matching = MatchingCost(body.constraints for body in ir.bodies)
        namespace = ir.policy.namespace
        self._dialect = dialect_of(ir.policy.kind, namespaced=bool(namespace))
        self._bodies = [
            Body(body, self._dialect, namespace, pins=ir.pins) for body in ir.bodies
        ]
        early = of_conditions(self._dialect)
        self._exceptions = link_exceptions(ir.exceptions, early)
        self.reads_namespace = reads_namespace(self.ir)
        """The result depends on the Namespace's labels or content."""

    def may_match(self, request: Request) -> bool:
        """Return whether a copy may match, ignoring its selectors and names."""
        return any(
            not is_by_kind(body.ir.constraints) or matches(body.ir.constraints, request)
            for body in self._bodies
        )

    def matches(self, facts: Facts) -> bool:
        """Return whether a copy matches, or has a bad selector."""
        return any(self._matched(body, facts) != (False, None) for body in self._bodies)

    def evaluate(
        self,
        facts: Facts,
        shared: Shared,
        images: Images,
        *,
        of_files: bool = False,
        has_exceptions: bool = True,
    ) -> Iterator[Answer]:
        """Yield the answer of the original policy, then its copies' answers.

        ``of_files``: the objects are from files (CLI). KYVERNO: then copies ignore
        exceptions.
        """
        namespace = self.ir.policy.namespace
        for body in self._bodies:
            is_match, judged = self._matched(body, facts)
            reasons: list[str] = []
            if is_match:
                is_exempt = has_exceptions and not (of_files and body.ir.copy)
                exceptions = self._exceptions if is_exempt else []

                def judge(
                    facts: Facts,
                    shared: Shared,
                    body: Body = body,
                    exceptions: Sequence[LinkedException] = exceptions,
                    reasons: list[str] = reasons,
                ) -> RuleResult | None:
                    def opened() -> ImageScope:
                        return ImageScope(facts, shared, body, namespace, images)

                    scope = opened()
                    try:
                        return self._evaluated(body, facts, scope, exceptions, opened)
                    finally:
                        scope.close()
                        reasons += scope.verification.reasons

                if body.ir.copy == EXTRACTED and not facts.is_payload:
                    judged = _of_pods(facts, shared, judge)
                else:
                    judged = judge(facts, shared)
            yield Answer(body.ir.copy, judged, is_match, tuple(reasons))

    def pins(
        self, facts: Facts, shared: Shared, images: Images, settings: ImageSettings
    ) -> Iterator[tuple[list[Operation], RuleResult | None]]:
        """Yield for each copy that matches the digests of tags, and its error."""
        for body in self._bodies:
            is_match, problem = self._matched(body, facts)
            if problem is not None:
                yield [], problem
            if not is_match or body.ir.copy == EXTRACTED:
                # KYVERNO: tags in templates of custom workloads stay as they are.
                continue
            patch: list[Operation] = []
            try:
                patch, problems = self._pinned(body, facts, shared, images, settings)
            except DeadlinePassed:
                raise
            except (ExpressionFailed, BudgetExceeded, DependencyError) as error:
                problems = [error.message]
            message = f"failed to update digest: {'; '.join(problems)}"
            failed = (
                _verdict("mutateDigest", result.ERROR, message) if problems else None
            )
            yield patch, failed

    def _pinned(
        self,
        body: Body,
        facts: Facts,
        shared: Shared,
        images: Images,
        settings: ImageSettings,
    ) -> tuple[list[Operation], list[str]]:
        """Return the patch of a copy, and the reasons why images have no digest.

        Raises: DeadlinePassed, ExpressionFailed, BudgetExceeded, DependencyError.
        """

        def opened() -> ImageScope:
            namespace = self.ir.policy.namespace
            return ImageScope(facts, shared, body, namespace, images)

        scope = opened()
        try:
            if not met(body.conditions, scope, self.ir.policy):
                return [], []
            if applying(self._exceptions, facts, scope, opened, self.ir.policy):
                return [], []
            tagged = tagged_images(
                facts.request.object, body.terms.references, settings, facts.runtime
            )
            scope.verification.load_ahead([each.reference for each in tagged])
            return pinned(tagged, scope.verification.digest)
        finally:
            scope.close()

    def _matched(self, body: Body, facts: Facts) -> tuple[bool, RuleResult | None]:
        """Return whether the constraints match, and the error of a bad selector.

        KYVERNO: without constraints everything matches, and a JSON payload always does.
        """
        if facts.is_payload or body.ir.constraints is None:
            return True, None
        is_match, fault = fault_or_match(body.ir.constraints, facts.request)
        if not fault:
            return is_match, None
        message = f"failed to execute matching: {fault}"
        return False, _verdict("match", result.ERROR, message)

    def _evaluated(
        self,
        body: Body,
        facts: Facts,
        scope: ImageScope,
        exceptions: Sequence[LinkedException],
        opened: Callable[[], ImageScope],
    ) -> RuleResult | None:
        try:
            if not met(body.conditions, scope, self.ir.policy):
                return None
            matching = applying(exceptions, facts, scope, opened, self.ir.policy)
            if matching:
                return _exempt(matching)
            return self._of_images(body, scope, self._chosen(body, facts, scope))
        except DeadlinePassed:
            raise
        except (ExpressionFailed, BudgetExceeded, DependencyError) as error:
            message = f"failed to evaluate policy: {error.message}"
            return _verdict("evaluation", result.ERROR, message)

    def _chosen(
        self, body: Body, facts: Facts, scope: ImageScope
    ) -> dict[str, list[str]]:
        """Return the images that the policy selects, by the name of their extractor.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        extractors = extractors_for(facts.request, body.extractors, self._dialect)
        images = extracted(extractors, scope.value)
        references, runtime = body.terms.references, facts.runtime
        return {
            name: [image for image in listed if references.select(image, runtime)]
            for name, listed in images.items()
        }

    def _of_images(
        self, body: Body, scope: ImageScope, chosen: Mapping[str, list[str]]
    ) -> RuleResult:
        """Read the images and evaluate the validations on them.

        Raises: ExpressionFailed, BudgetExceeded, DependencyError.
        """
        images = [*dict.fromkeys(chain.from_iterable(chosen.values()))]
        tagged = next((image for image in images if "@" not in image), None)
        if self.ir.needs_digests and tagged is not None:
            message = f"image {tagged} does not have a digest"
            return _verdict(self.ir.policy.name, result.FAIL, message)
        scope.verification.load_ahead(images)
        for image in images:
            scope.verification.load(image)
        scope.show(chosen, body.attestors)
        verdict = self._decided(body, scope)
        if self.ir.needs_verification and verdict.status == result.PASS:
            scope.images.require(verdict, images)
        return verdict

    def _decided(self, body: Body, scope: ImageScope) -> RuleResult:
        """Return the verdict. Raises: ExpressionFailed, BudgetExceeded."""
        name = self.ir.policy.name
        for index, validation in enumerate(body.validations):
            if scope.value(validation.expression) is not True:
                message = message_of(validation, scope, index)
                verdict = _verdict(name, result.FAIL, message)
                verdict.properties = annotated(body.annotations, scope)
                return verdict
        verdict = _verdict(name, result.PASS, "success")
        verdict.properties = annotated(body.annotations, scope)
        return verdict


def _of_pods(facts: Facts, shared: Shared, judge: Judge) -> RuleResult | None:
    """Return the result for the Pods of an object's templates."""
    try:
        return of_pods(facts, shared, judge, result.IMAGE_VERIFY)
    except BudgetExceeded as error:
        message = f"failed to evaluate policy: {error.message}"
        return _verdict("evaluation", result.ERROR, message)


def _exempt(matching: Sequence[CelExceptionIR]) -> RuleResult:
    """Return the result for an excepted object.

    KYVERNO: the exceptions' keys are missing from the message, and the status is always
    skip, regardless of ``reportResult``.
    """
    keys = tuple(exception.key for exception in matching)
    message = _EXCEPTION + ", ".join("" for _ in keys)
    return RuleResult(
        "exception", result.VALIDATION, result.SKIP, message, exceptions=keys
    )


def _verdict(rule: str, status: str, message: str) -> RuleResult:
    return RuleResult(rule, result.IMAGE_VERIFY, status, cut(message))
