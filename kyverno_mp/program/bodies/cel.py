"""Evaluate ``validate.cel`` on a request.

Room: program. Takes: CelIR and celPreconditions of one rule. Gives: fast codes and
Outcomes. Next: program/rule.py. May touch: parameters and the authorizer, through
program/ports only.
Source: docs/behaviour/engine 6.4; k8s
apiserver/pkg/admission/plugin/policy/validating/validator.go.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    InputError,
)
from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.ir.cel import CelIR, CelValidationIR, NamedExpressionIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.cel_authorizer import authorizer_of
from kyverno_mp.program.bodies.cel_conditions import (
    MATCH_CONDITIONS_COST_MAX,
    evaluate,
    link_conditions,
)
from kyverno_mp.program.bodies.cel_params import collect_params
from kyverno_mp.program.bodies.outcome import EXPLAIN, PASSED, SKIPPED, Outcome
from kyverno_mp.program.context.cel_scope import (
    API_SERVER,
    NOBODY,
    CelScope,
    Dialect,
    LinkedExpression,
    Shared,
    link,
    link_variables,
    namespace_value,
    object_scope,
    subject_namespace,
    whole_namespace,
)
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

COST_MAX: Final = 10_000_000
"""The API server's RuntimeCELCostBudget for all expressions of one rule."""
_MESSAGE_BYTES_MAX: Final = 5120
"""MaxEvaluatedMessageExpressionSizeBytes (docs/behaviour/cel 12e)."""
_LOOK_BELOW: Final = COST_MAX - 10_000
"""Remaining cost below which the clock is checked: some milliseconds have passed."""
_SPACE: Final = "\t\n\v\f\r \x85\xa0"


class Validation:
    """One linked entry of ``cel.expressions``."""

    __slots__ = ("expression", "message", "message_expression")

    def __init__(
        self,
        expression: LinkedExpression,
        message: str,
        message_expression: LinkedExpression | None,
    ) -> None:
        self.expression = expression
        self.message = message
        self.message_expression = message_expression

    def failure_text(self, scope: CelScope) -> str:
        """Return the failure message: messageExpression, message, or the expression."""
        message = ""
        if self.message_expression is not None:
            value, problem = scope.evaluate(self.message_expression)
            if not problem and type(value) is str:
                message = value.strip(_SPACE)
                if "\n" in message or len(message.encode()) > _MESSAGE_BYTES_MAX:
                    message = ""
        message = message or self.message.strip(_SPACE)
        return message or f"failed expression: {self.expression.text.strip(_SPACE)}"


def link_validations(
    validations: Iterable[CelValidationIR], dialect: Dialect = API_SERVER
) -> list[Validation]:
    """Link the validations in order."""
    return [
        Validation(
            link(validation.expression, dialect),
            validation.message,
            None
            if validation.message_expression is None
            else link(validation.message_expression, dialect),
        )
        for validation in validations
    ]


def _unknown_namespace(request: Request) -> str:
    """Return the object's namespace if the cluster does not have it, otherwise ""."""
    return "" if request.namespace_known else subject_namespace(request)


def _namespace(request: Request, scope: RuleContext) -> Json:
    """Return ``namespaceObject`` from the cluster; otherwise with the known fields."""
    objects = scope.cluster_data.namespace_objects
    name = subject_namespace(request)
    if objects is not None and name:
        namespace = objects.namespace(name, scope.runtime.deadline_ns)
        if namespace is not None:
            return whole_namespace(namespace)
    are_labels_known = (
        request.ints_are_numbers or scope.cluster_data.namespaces is not None
    )
    return namespace_value(request, labels_known=are_labels_known)


def _texts(cel: CelIR, preconditions: tuple[NamedExpressionIR, ...]) -> str:
    """Return all expressions as one string, to search for names."""
    expressions = [entry.expression for entry in (*cel.variables, *preconditions)]
    for validation in cel.validations:
        expressions.append(validation.expression)
        if validation.message_expression is not None:
            expressions.append(validation.message_expression)
    return "\n".join(expression.text for expression in expressions)


class CelBody:
    """``validate.cel`` of one rule, evaluated on every operation."""

    def __init__(
        self, rule: str, cel: CelIR, preconditions: tuple[NamedExpressionIR, ...]
    ) -> None:
        self._rule = rule
        self._params = cel.params
        self._variables = link_variables(cel.variables)
        self._preconditions = link_conditions(preconditions)
        self._validations = link_validations(cel.validations)
        sources = _texts(cel, preconditions)
        # PERF: most rules use neither; creating both takes longer than the evaluation.
        self._reads_request = "request" in sources
        self._reads_namespace = "namespaceObject" in sources
        self._asks = "authorizer" in sources

        programs = [each.expression.program for each in self._validations]
        is_bound = (
            self._params is not None
            or self._preconditions
            or self._reads_request
            or self._reads_namespace
            or self._asks
        )
        self._plain = [] if is_bound else [p for p in programs if p is not None]
        self.reads_object_only = not is_bound and None not in programs
        """Whether ``fast_plain`` can replace ``fast``."""

    def fast_plain(self, context: RequestContext) -> int:
        """Evaluate like ``fast``, without a scope.

        PERF: creating a scope takes longer than the evaluation. Raises: DeadlinePassed
        after expensive expressions; cheap expressions do not check the clock.
        """
        if _unknown_namespace(context.request):
            return EXPLAIN
        if context.cel is None:
            context.cel = Shared(context.request)
        runtime = context.runtime
        opened = object_scope(context.cel, runtime, Budget(COST_MAX), self._variables)
        try:
            for program in self._plain:
                if opened.run(program) is not True:
                    return EXPLAIN
        except InputError:
            return EXPLAIN
        if opened.budget_left < _LOOK_BELOW:
            runtime.check_clock()
        return PASSED

    def fast(self, scope: RuleContext, _target: Json) -> int:
        """Return whether every expression is true."""
        if self._params is not None or _unknown_namespace(scope.shared.request):
            return EXPLAIN
        if self._preconditions:
            met, problem = self._met(scope, None)
            if problem:
                return EXPLAIN
            if not met:
                return SKIPPED
        opened = self._open(scope, None, COST_MAX)
        for validation in self._validations:
            value, _ = opened.evaluate(validation.expression)
            if value is not True:
                return EXPLAIN
        return PASSED

    def explain(self, scope: RuleContext, _target: Json) -> list[Outcome]:
        """Return the first failure, a skip, or a pass."""
        namespace = _unknown_namespace(scope.shared.request)
        if namespace:
            message = (
                "Error getting the resource's namespace:"
                f' namespaces "{namespace}" not found'
            )
            return [Outcome(result.ERROR, message)]
        try:
            params = self._collected(scope)
        except DeadlinePassed:
            raise
        except (ExpressionFailed, DependencyError) as error:
            message = f"error in parameterized resource: {error.message}"
            return [Outcome(result.ERROR, message, code=error.code)]
        for outcome in self._evaluated(scope, params):
            return [outcome]
        return [Outcome(result.PASS, f"Validation rule '{self._rule}' passed.")]

    def _collected(self, scope: RuleContext) -> list[Json]:
        if self._params is None:
            return [None]
        return collect_params(self._params, scope.shared.request, scope)

    def _evaluated(self, scope: RuleContext, params: list[Json]) -> Iterator[Outcome]:
        """Yield the outcomes other than a pass, for each parameter in turn."""
        for param in params:
            if self._preconditions:
                met, problem = self._met(scope, param)
                if problem:
                    yield Outcome(result.FAIL, problem)
                elif not met:
                    yield Outcome(result.SKIP, "cel preconditions not met")
            opened = self._open(scope, param, COST_MAX)
            for validation in self._validations:
                value, problem = opened.evaluate(validation.expression)
                if problem:
                    yield Outcome(result.FAIL, problem)
                elif value is not True:
                    yield Outcome(result.FAIL, validation.failure_text(opened))

    def _met(self, scope: RuleContext, param: Json) -> tuple[bool, str]:
        opened = self._open(scope, param, MATCH_CONDITIONS_COST_MAX, bare=True)
        return evaluate(self._preconditions, opened)

    def _open(
        self, scope: RuleContext, param: Json, cost: int, *, bare: bool = False
    ) -> CelScope:
        """Create the variables; ``bare``: without the namespace, as in conditions."""
        request = scope.shared.request
        namespace = None
        if self._reads_namespace and not bare:
            namespace = _namespace(request, scope)
        shared = scope.shared
        if shared.cel is None:
            shared.cel = Shared(request)
        authority = scope.cluster_data.authority if self._asks else None
        return CelScope(
            request,
            runtime=scope.runtime,
            budget=Budget(cost),
            variables=self._variables,
            namespace=namespace,
            params=param,
            reads_request=self._reads_request,
            shared=shared.cel,
            authorizer=(
                NOBODY
                if authority is None
                else authorizer_of(request, authority, scope.runtime.deadline_ns)
            ),
        )
