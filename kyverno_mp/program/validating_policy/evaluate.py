"""Evaluate ValidatingPolicies on a request or on a JSON payload.

Room: program. Takes: ValidatingPolicyIR linked once; Facts. Gives: an Answer for the
policy and for each of its autogen copies. Next: cli/apply/evaluate.
May touch: external systems only through CEL ports.
Source: docs/behaviour/cel 6; Kyverno pkg/cel/policies/vpol/compiler/policy.go,
pkg/cel/policies/vpol/engine/engine.go.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.validating_policy import ValidatingBodyIR, ValidatingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.bodies.cel import COST_MAX, Validation, link_validations
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import (
    LinkedExpression,
    Shared,
    link_variables,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    MatchingCost,
    fault_or_match,
    is_by_kind,
    is_selector_free,
)
from kyverno_mp.program.validating_policy.exceptions import exempted, link_exceptions
from kyverno_mp.program.validating_policy.reads import policy_reads, reads_namespace
from kyverno_mp.program.validating_policy.scans import is_derived
from kyverno_mp.program.validating_policy.scope import (
    KYVERNO,
    NAMESPACED,
    Facts,
    KindScope,
    before_variables,
    met,
    pure_scope,
)
from kyverno_mp.program.validating_policy.templates import of_pods

PASSED: Final = RuleResult("", result.VALIDATION, result.PASS, "success")
SKIPPED: Final = RuleResult("", result.VALIDATION, result.SKIP, "skip")
"""PERF: PASSED and SKIPPED are the usual results, shared by all reviews. Read-only."""


class Answer(NamedTuple):
    """The verdict of one copy of a policy; None if the copy does not match.

    ``is_dropped``: upstream's CLI has no response for a copy that does not match.
    """

    copy: str
    result: RuleResult | None
    is_dropped: bool


class Body:
    """One linked copy of a policy."""

    __slots__ = (
        "annotations",
        "conditions",
        "ir",
        "is_by_kind",
        "validations",
        "variables",
    )

    def __init__(self, ir: ValidatingBodyIR, *, namespaced: bool) -> None:
        dialect = NAMESPACED if namespaced else KYVERNO
        self.ir = ir
        self.is_by_kind = is_by_kind(ir.constraints)
        """Whether the constraints' result is equal for all requests of one
        RequestKind."""
        self.conditions = link_conditions(ir.conditions, before_variables(dialect))
        self.variables = link_variables(ir.variables, dialect)
        self.validations = link_validations(ir.validations, dialect)
        self.annotations = [*link_variables(ir.annotations, dialect).items()]


class LinkedValidatingPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = (
        "_bodies",
        "_exceptions",
        "_is_pure",
        "grouping",
        "ir",
        "is_derived",
        "matching",
        "reads",
        "reads_namespace",
    )

    def __init__(
        self, ir: ValidatingPolicyIR, *, full_policy: ValidatingPolicyIR | None = None
    ) -> None:
        """``full_policy``: the whole policy, if ``ir`` is only a part of it."""
        self.ir = full_policy or ir
        constraints = [each.constraints for each in ir.bodies]
        self.grouping = MatchingCost(each for each in constraints if is_by_kind(each))
        """The cost of ``bodies_for``, once per RequestKind."""
        self.matching = MatchingCost(
            each for each in constraints if not is_by_kind(each)
        )
        """The cost for each request."""
        namespaced = bool(ir.policy.namespace)
        dialect = NAMESPACED if namespaced else KYVERNO
        self._bodies = [Body(body, namespaced=namespaced) for body in ir.bodies]
        self._exceptions = link_exceptions(ir.exceptions, before_variables(dialect))
        self.reads_namespace = reads_namespace(self.ir)
        """The result depends on the Namespace's labels or content."""
        self.is_derived = is_derived(self.ir)
        """Whether a scan can reproduce the results of a review."""
        self._is_pure = ir.effects == EFFECT_PURE
        self.reads = policy_reads(ir)
        """The fields of the object that the policy reads; None: unknown, or other data
        is read."""

    def bodies_for(self, request: Request) -> tuple[Body, ...]:
        """Return the copies that may match requests of the same RequestKind."""
        return tuple(
            body
            for body in self._bodies
            if not body.is_by_kind or matches(body.ir.constraints, request)
        )

    def may_match(self, body: Body, request: Request) -> bool:
        """Return whether a copy matches, or has a bad selector."""
        return self._matched(body, request) != (False, None)

    def results(
        self, bodies: Sequence[Body], facts: Facts, shared: Shared
    ) -> list[RuleResult]:
        """Return the results of a review; ``bodies``: the result of ``bodies_for``."""
        results: list[RuleResult] = []
        for body in bodies:
            judged: RuleResult | None = None
            if body.is_by_kind:
                judged = self._evaluated(body, facts, shared)
            else:
                is_match, judged = self._matched(body, facts.request)
                if is_match:
                    judged = self._evaluated(body, facts, shared)
            if judged is not None:
                results.append(judged)
        return results

    def evaluate(self, facts: Facts, shared: Shared) -> Iterator[Answer]:
        """Yield the answer of the original policy, then its copies' answers.

        ``shared``: the values that all policies of this dialect share in one request.
        """
        for body in self._bodies:
            is_match, judged = self._matched(body, facts.request)
            if is_match:
                judged = self._evaluated(body, facts, shared)
            is_dropped = judged is None and is_selector_free(body.ir.constraints)
            yield Answer(body.ir.copy, judged, is_dropped)

    def _matched(self, body: Body, request: Request) -> tuple[bool, RuleResult | None]:
        """Return whether the constraints match, and the error of a bad selector."""
        if self.ir.is_json:
            return True, None
        if body.ir.constraints is None:
            return False, None
        is_match, fault = fault_or_match(body.ir.constraints, request)
        if not fault:
            return is_match, None
        message = f"failed to execute matching: {fault}"
        return False, _verdict(result.ERROR, message, "match")

    def _evaluated(self, body: Body, facts: Facts, shared: Shared) -> RuleResult:
        if body.ir.copy != EXTRACTED or facts.is_payload:
            return self._of_object(body, facts, shared)

        def judge(facts: Facts, shared: Shared) -> RuleResult | None:
            judged = self._of_object(body, facts, shared)
            return None if judged is SKIPPED else judged

        try:
            return of_pods(facts, shared, judge, result.VALIDATION) or SKIPPED
        except BudgetExceeded as error:
            return _failed(error)

    def _of_object(self, body: Body, facts: Facts, shared: Shared) -> RuleResult:
        namespace = self.ir.policy.namespace
        if self._is_pure:
            scope = pure_scope(facts, shared, body.variables, COST_MAX, namespace)
        else:
            scope = KindScope(facts, shared, body.variables, COST_MAX, namespace)
        try:
            exempt = None
            if self._exceptions:
                exempt = self._exempted(scope, facts, shared)
            return exempt or self._judged(body, scope)
        except (ExpressionFailed, BudgetExceeded) as error:
            return _failed(error)

    def _exempted(
        self, scope: KindScope, facts: Facts, shared: Shared
    ) -> RuleResult | None:
        """Return the result of an exempt object.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        policy = self.ir.policy

        def opened() -> KindScope:
            scope = KindScope(facts, shared, {}, 0, policy.namespace)
            scope.unset("exceptions")
            return scope

        return exempted(
            self._exceptions, facts, scope, opened, result.VALIDATION, policy
        )

    def _judged(self, body: Body, scope: KindScope) -> RuleResult:
        """Return the verdict on an object that no exception fully exempts.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        if not met(body.conditions, scope, self.ir.policy):
            return SKIPPED
        for index, validation in enumerate(body.validations):
            try:
                if scope.value(validation.expression) is True:
                    continue
            except (ExpressionFailed, BudgetExceeded) as error:
                return _failed(error, index)
            message = message_of(validation, scope, index)
            annotations = annotated(body.annotations, scope)
            failed = _verdict(result.FAIL, message, annotations=annotations)
            failed.validation = index
            return failed
        if not body.annotations:
            return PASSED
        annotations = annotated(body.annotations, scope)
        return _verdict(result.PASS, "success", annotations=annotations)


def message_of(validation: Validation, scope: KindScope, index: int) -> str:
    """Return the message of a failure. KYVERNO: it is not trimmed."""
    message = validation.message
    if validation.message_expression is not None:
        try:
            message = scope.value(validation.message_expression)
        except ExpressionFailed as error:
            message = f"failed to evaluate message expression: {error.message}"
    return message or f"CEL expression validation failed at index {index}"


def annotated(
    annotations: Sequence[tuple[str, LinkedExpression]],
    scope: KindScope,
    format_key: Callable[[str], str] = "'{}'".format,
) -> dict[str, str]:
    """Return the audit annotations; ``format_key`` formats their keys in errors.

    Raises: ExpressionFailed, BudgetExceeded.
    """
    values: dict[str, str] = {}
    for key, expression in annotations:
        try:
            value = scope.value(expression)
        except ExpressionFailed as error:
            message = (
                f"failed to evaluate auditAnnotation {format_key(key)}: {error.message}"
            )
            raise ExpressionFailed(error.code, message) from error
        if value is None:
            # KYVERNO: null compiles, but fails here (docs/behaviour/cel 6).
            raise ExpressionFailed(
                "cel.annotation",
                f"failed to convert auditAnnotation {format_key(key)} expression: type"
                " conversion error from 'null_type' to 'string'",
            )
        if value:
            values[key] = cut(value)
    return values


def _failed(error: ExpressionFailed | BudgetExceeded, index: int = -1) -> RuleResult:
    """Return the result of an error; ``index``: of the validation that failed."""
    message = f"failed to load context: {error.message}"
    failed = _verdict(result.ERROR, message, "evaluation")
    failed.code = error.code
    failed.validation = index
    return failed


def _verdict(
    status: str, message: str, rule: str = "", annotations: dict[str, str] | None = None
) -> RuleResult:
    return RuleResult(rule, result.VALIDATION, status, cut(message), annotations or {})
