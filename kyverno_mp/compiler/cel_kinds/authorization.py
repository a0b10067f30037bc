"""Compile ValidatingPolicies that authorize HTTP and Envoy requests.

Room: compiler. Takes: decoded documents in evaluation mode HTTP or Envoy. Gives:
AuthorizationPolicyIR, or every expression that does not compile; the expressions
around an HTTP authorizer. Next: program/authorization.py.
Source: docs/behaviour/cel 15.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.compiler.cel_kinds.validating_policy import (
    Builder,
    compile_exception,
    compile_exceptions,
    key_of,
    names_policy,
    policy_of,
    problems_of_exceptions,
)
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.errors import NOWHERE, Where
from kyverno_mp.expr.cel.authz.library import mode_of
from kyverno_mp.expr.cel.authz.tokens import EFFECTS
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.types import BOOL, DYN, NULL, Type, object_type
from kyverno_mp.ir.authorization import AuthorizationPolicyIR, ExchangeIR
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.policy.cel_kinds.served import decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AuthorizationPolicy,
    CelPolicyException,
    is_authorization_policy,
)
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.values.jsonvalue import Json

_NOT_BOOL: Final = "matchCondition output is expected to be of type bool"


def compile_authorization(
    document: AuthorizationPolicy, exceptions: Iterable[CelPolicyException] = ()
) -> AuthorizationPolicyIR:
    """Compile a policy with the exceptions to it.

    An exception names the policy, and its ``evaluationMode`` is the policy's mode.
    Raises: DocumentInvalid with every expression that does not compile.
    """
    compiled, unusable = compile_authorization_with(document, exceptions)
    if unusable:
        location = Where(policy=key_of(document))
        raise DocumentInvalid(problems_of_exceptions(unusable), location)
    return compiled


def compile_authorization_with(
    document: AuthorizationPolicy, exceptions: Iterable[CelPolicyException]
) -> tuple[AuthorizationPolicyIR, list[tuple[str, Problem]]]:
    """Compile a policy; return the exceptions that are not usable, too.

    Raises: DocumentInvalid with every expression that does not compile.
    """
    builder = _Builder(document.mode)
    spec = document.spec
    conditions = tuple(
        builder.condition(condition, f"spec.matchConditions[{index}].expression")
        for index, condition in enumerate(spec.match_conditions)
    )
    variables = builder.variables(spec.variables)
    validations = tuple(
        builder.answer(validation.expression, f"spec.validations[{index}].expression")
        for index, validation in enumerate(spec.validations)
    )
    if builder.problems:
        raise DocumentInvalid(builder.problems, Where(policy=key_of(document)))
    attached, unusable = compile_exceptions(
        (
            exception
            for exception in exceptions
            if exception.spec.evaluation_mode == document.mode
            and names_policy(exception, document)
        ),
        lambda: _Builder(document.mode).declared(builder),
    )
    compiled = AuthorizationPolicyIR(
        policy=policy_of(document),
        mode=document.mode,
        conditions=conditions,
        variables=variables,
        validations=validations,
        exceptions=attached,
        effects=effects_of((conditions, variables, validations, attached), EFFECTS),
    )
    return compiled, unusable


def compile_exchange(source: str, input_type: str, result: str) -> ExchangeIR:
    """Compile an expression that turns an HTTP message into another one.

    ``input_type``: the type of ``object``; ``result``: the type of its value, which
    may be null. Raises: DocumentInvalid.
    """
    builder = _Builder("HTTP")
    builder.environment.variables["object"] = object_type(input_type)
    expression = builder.of_type(source, "expression", result)
    if builder.problems:
        raise DocumentInvalid(builder.problems, NOWHERE)
    return ExchangeIR(expression, effects_of((expression,), EFFECTS))


def refusals_of(raw: dict[str, Json]) -> list[str]:
    """Return why an authorizer could not use a policy; [] for other documents."""
    if not is_authorization_policy(raw):
        return []
    try:
        document = decode_served(raw)
        assert isinstance(document, AuthorizationPolicy)
        compile_authorization(document)
    except DocumentInvalid as error:
        return list(map(str, error.problems))
    return []


def faults(document: AuthorizationPolicy | CelPolicyException) -> Iterator[Problem]:
    """Yield the problems of the expressions of a policy or an exception."""
    problems: Iterable[Problem] = ()
    if isinstance(document, CelPolicyException):
        builder = _Builder(document.spec.evaluation_mode)
        builder.environment.records = builder.mode.records(_AnyVariable())
        compile_exception(document, builder)
        problems = builder.problems
    else:
        try:
            compile_authorization(document)
        except DocumentInvalid as error:
            problems = error.problems
    yield from map(located_fault, problems)


class _AnyVariable(dict[str, Type]):
    """The fields of ``variables`` of an unknown policy, each of an unknown type."""

    def get(self, _name: str, _default: object = None) -> Type:
        """Return the type of a variable."""
        return DYN


class _Builder(Builder):
    """Compiles the expressions of one policy in one of the modes."""

    def __init__(self, mode: str) -> None:
        self.mode = mode_of(mode)

        def library(*, namespaced: bool) -> Library:
            del namespaced  # Only cluster policies authorize requests.
            return self.mode.library()

        super().__init__("", self.mode.names(), library)
        # The dict is the builder's own, which learns the variables' types.
        self.environment.records = self.mode.records(self._fields)
        self.environment.constructors = self.mode.schema.records()

    def condition(self, condition: NamedExpression, path: str) -> NamedExpressionIR:
        """Compile a condition, which has to be a bool and not dyn."""
        expression = self._of_types(condition.expression, path, (BOOL,), _NOT_BOOL)
        return NamedExpressionIR(condition.name, expression)

    def answer(self, source: str, path: str) -> Expression:
        """Compile a validation, whose value has to be an answer or null, not dyn."""
        return self.of_type(source, path, self.mode.response, "rule response output is")

    def of_type(
        self, source: str, path: str, result: str, subject: str = "the value is"
    ) -> Expression:
        """Compile an expression whose value has a type or is null, not dyn."""
        reason = f"{subject} expected to be of type {result}"
        return self._of_types(source, path, (object_type(result), NULL), reason)

    def _of_types(
        self, source: str, path: str, types: tuple[Type, ...], reason: str
    ) -> Expression:
        before = len(self.problems)
        expression, compiled = self.compiled(source, path)
        if len(self.problems) == before and compiled not in types:
            return self.refused(source, path, reason)
        return expression
