"""Evaluate ImageValidatingPolicies on a request or on a JSON payload.

Room: program. Takes: ImageValidatingPolicyIR linked once; Facts, PolicyImages. Gives:
an Answer for the policy and for each of its autogen copies. Next: plan.py,
cli/apply/stages/image_policies.py.
May touch: external systems only through ports.
Source: docs/behaviour/cel 10.4; docs/behaviour/images 8; Kyverno
pkg/image/verification/evaluator/policy.go, pkg/cel/policies/ivpol/engine/engine.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
)
from kyverno_mp.expr.cel.functions.kyverno.image_verification import (
    Attestor,
    VerifierContext,
)
from kyverno_mp.expr.cel.values import Value
from kyverno_mp.ir.image_policies import ImageBodyIR, ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.bodies.cel import COST_MAX, Validation
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import (
    Dialect,
    LinkedExpression,
    Shared,
    link,
    link_variables,
)
from kyverno_mp.program.image_policies.attestors import LinkedAttestor
from kyverno_mp.program.image_policies.dialect import (
    before_images,
    dialect_of,
    of_conditions,
)
from kyverno_mp.program.image_policies.expressions import reads_namespace
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.image_policies.references import (
    References,
    extracted,
    extractors_for,
)
from kyverno_mp.program.image_policies.verification import PolicyTerms, Verification
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    MatchingCost,
    fault_or_match,
    is_by_kind,
)
from kyverno_mp.program.validating_policy.evaluate import (
    annotated,
    message_of,
)
from kyverno_mp.program.validating_policy.exceptions import (
    LinkedException,
    exempting,
    is_expired,
    link_exceptions,
)
from kyverno_mp.program.validating_policy.scope import Facts, KindScope

_EXCEPTION: Final = "rule is skipped due to policy exception: "
Begin: TypeAlias = Callable[[], PolicyImages]
"""Starts the image verification of one review."""


class Answer(NamedTuple):
    """The verdict of one copy of a policy, if the copy has one.

    ``is_matched``: the constraints match. ``reasons``: why attestors were rejected.
    """

    copy: str
    result: RuleResult | None
    is_matched: bool
    reasons: tuple[str, ...] = ()


class _Body:
    """One linked copy of a policy."""

    def __init__(self, ir: ImageBodyIR, dialect: Dialect, namespace: str) -> None:
        self.ir = ir
        self.conditions = link_conditions(ir.conditions, of_conditions(dialect))
        early = before_images(dialect)
        self.extractors = {one.name: link(one.expression, early) for one in ir.images}
        self.variables = link_variables(ir.variables, dialect)
        self.attestors = [LinkedAttestor(one, dialect) for one in ir.attestors]
        self.validations = [
            Validation(
                link(given.expression, dialect),
                given.message,
                link(given.message_expression, dialect)
                if given.message_expression
                else None,
            )
            for given in ir.validations
        ]
        self.annotations = [*link_variables(ir.annotations, dialect).items()]
        access = ir.access
        self.terms = PolicyTerms(
            References(ir.references),
            {one.name: one for one in ir.attestations},
            RegistryAccess(is_tenants=bool(namespace))
            if access is None
            else RegistryAccess(
                access.insecure, access.providers, access.secrets, bool(namespace)
            ),
            namespace,
        )


class _ImageScope(KindScope):
    """The variables of one policy, and its functions."""

    __slots__ = ("verification",)

    def __init__(
        self,
        facts: Facts,
        shared: Shared,
        body: _Body,
        namespace: str,
        images: "Images",
    ) -> None:
        """``namespace``: the policy's namespace, "" for a cluster-wide policy."""
        super().__init__(facts, shared, body.variables, COST_MAX, namespace)
        self.verification = Verification(body.terms, images.begun(), facts.runtime)
        given = self._values
        self._values: tuple[Value, ...] = (
            *given[:4],
            None,
            None,
            {name: name for name in body.terms.attestations},
            *given[5:],
            VerifierContext(self.verification),
        )

    def show(
        self, images: Mapping[str, list[str]], attestors: Sequence[LinkedAttestor]
    ) -> None:
        """Set ``images`` and ``attestors``.

        An attestor's fields are evaluated when a function receives the attestor.
        """
        values = {
            one.name: Attestor(one.name, partial(one.query, self.value))
            for one in attestors
        }
        self._values = (*self._values[:4], images, values, *self._values[6:])

    def close(self) -> None:
        """Clear the values. PERF: attestors refer back to the scope."""
        self._values = ()


class Images:
    """The images of one review, created when the first policy matches."""

    def __init__(self, begin: Begin | None) -> None:
        self._begin = begin
        self._begun: PolicyImages | None = None

    def begun(self) -> PolicyImages | None:
        """Return the images; None if no registry is available."""
        if self._begun is None and self._begin is not None:
            self._begun = self._begin()
        return self._begun


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

    def __init__(self, ir: ImageValidatingPolicyIR) -> None:
        self.ir = ir
        self.matching = MatchingCost(one.constraints for one in ir.bodies)
        namespace = ir.policy.namespace
        self._dialect = dialect_of(namespaced=bool(namespace))
        self._bodies = [_Body(body, self._dialect, namespace) for body in ir.bodies]
        early = of_conditions(self._dialect)
        self._exceptions = link_exceptions(ir.exceptions, early)
        self.reads_namespace = reads_namespace(ir)
        """The result depends on the Namespace's labels or content."""

    def may_match(self, request: Request) -> bool:
        """Return whether a copy may match, ignoring its selectors and names."""
        return any(
            not is_by_kind(body.ir.constraints) or matches(body.ir.constraints, request)
            for body in self._bodies
        )

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
            is_match, found = self._matched(body, facts)
            reasons: list[str] = []
            if is_match:
                is_exempt = has_exceptions and not (of_files and body.ir.copy)
                exceptions = self._exceptions if is_exempt else []

                def opened(body: _Body = body) -> _ImageScope:
                    return _ImageScope(facts, shared, body, namespace, images)

                scope = opened()
                try:
                    found = self._evaluated(body, facts, scope, exceptions, opened)
                finally:
                    scope.close()
                reasons = scope.verification.reasons
            yield Answer(body.ir.copy, found, is_match, tuple(reasons))

    def _matched(self, body: _Body, facts: Facts) -> tuple[bool, RuleResult | None]:
        """Return whether the constraints match, and the error of a bad selector.

        KYVERNO: without constraints everything matches, and a JSON payload always does.
        """
        if facts.is_payload or body.ir.constraints is None:
            return True, None
        is_match, fault = fault_or_match(body.ir.constraints, facts.request)
        if not fault:
            return is_match, None
        text = f"failed to execute matching: {fault}"
        return False, _verdict("match", result.ERROR, text)

    def _evaluated(
        self,
        body: _Body,
        facts: Facts,
        scope: _ImageScope,
        exceptions: Sequence[LinkedException],
        opened: Callable[[], _ImageScope],
    ) -> RuleResult | None:
        try:
            if not self._met(body.conditions, scope):
                return None
            matching = self._matching(exceptions, facts, scope, opened)
            if matching:
                return _exempt(matching)
            self._read_images(body, facts, scope)
            return self._decided(body, scope)
        except DeadlinePassed:
            raise
        except (ExpressionFailed, BudgetExceeded, DependencyError) as error:
            text = f"failed to evaluate policy: {error.message}"
            return _verdict("evaluation", result.ERROR, text)

    def _matching(
        self,
        exceptions: Sequence[LinkedException],
        facts: Facts,
        scope: _ImageScope,
        opened: Callable[[], _ImageScope],
    ) -> list[CelExceptionIR]:
        """Return the exceptions that apply; reviews record their errors separately."""
        if facts.faults is None:
            return [
                one.ir
                for one in exceptions
                if not is_expired(one.ir, facts.runtime)
                and self._met(one.conditions, scope)
            ]
        return exempting(exceptions, facts, opened, self._met)

    def _read_images(self, body: _Body, facts: Facts, scope: _ImageScope) -> None:
        """Extract the images, and read those that the policy selects.

        Raises: ExpressionFailed, BudgetExceeded, DependencyError.
        """
        extractors = extractors_for(facts.request, body.extractors, self._dialect)
        found = extracted(extractors, scope.value)
        references, runtime = body.terms.references, facts.runtime
        chosen = {
            name: [one for one in listed if references.select(one, runtime)]
            for name, listed in found.items()
        }
        images = [*dict.fromkeys(one for found in chosen.values() for one in found)]
        scope.verification.load_ahead(images)
        for image in images:
            scope.verification.load(image)
        scope.show(chosen, body.attestors)

    def _decided(self, body: _Body, scope: _ImageScope) -> RuleResult:
        """Return the verdict. Raises: ExpressionFailed, BudgetExceeded."""
        name = self.ir.policy.name
        for index, validation in enumerate(body.validations):
            if scope.value(validation.expression) is not True:
                text = message_of(validation, scope, index)
                found = _verdict(name, result.FAIL, text)
                found.properties = annotated(body.annotations, scope)
                return found
        found = _verdict(name, result.PASS, "success")
        found.properties = annotated(body.annotations, scope)
        return found

    def _met(self, conditions: Sequence[LinkedExpression], scope: KindScope) -> bool:
        """Return whether all conditions are true; false takes precedence over an error.

        Raises: ExpressionFailed unless the failure policy ignores it, BudgetExceeded.
        """
        problems = []
        for condition in conditions:
            try:
                if scope.value(condition) is not True:
                    return False
            except ExpressionFailed as error:
                problems.append(error.message)
        if not problems:
            return True
        if self.ir.policy.failure_policy == "Ignore":
            return False
        raise ExpressionFailed("cel.conditions", "; ".join(problems))


def _exempt(matching: Sequence[CelExceptionIR]) -> RuleResult:
    """Return the result for an excepted object.

    KYVERNO: the exceptions' keys are missing from the message, and the status is always
    skip, regardless of ``reportResult``.
    """
    keys = tuple(one.key for one in matching)
    text = _EXCEPTION + ", ".join("" for _ in keys)
    return RuleResult(
        "exception", result.VALIDATION, result.SKIP, text, exceptions=keys
    )


def _verdict(rule: str, status: str, text: str) -> RuleResult:
    return RuleResult(rule, result.IMAGE_VERIFY, status, cut(text))
