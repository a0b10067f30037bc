"""Compile the CEL parts of a policy, each expression separately.

Room: compiler. Takes: ``validate.cel``, celPreconditions, matchConditions. Gives: CelIR
and NamedExpressionIRs. If an expression does not compile, the record keeps the error,
and the rule reports it at run time (upstream compiles on each request).
Next: compiler/rules/body.py, compiler/build.py.
Source: docs/behaviour/engine 6.4, 1.9; k8s
apiserver/pkg/admission/plugin/cel/compile.go (including program instantiation).
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.compiler.rules.match import build_selector
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.fold import constant_failure
from kyverno_mp.expr.cel.functions.authorization import AUTHORIZER, RECORDS
from kyverno_mp.expr.cel.linking.program import compile_expression
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.types import Type, list_of, map_of, object_type
from kyverno_mp.ir.cel import (
    CelIR,
    CelParamsIR,
    CelValidationIR,
    NamedExpressionIR,
)
from kyverno_mp.limits import CEL_TYPE_DEPTH_MAX
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import CEL, CELValidation, ParamKind, ParamRef

_GVK: Final = object_type("kubernetes.GroupVersionKind")
_GVR: Final = object_type("kubernetes.GroupVersionResource")
_USER: Final = object_type("kubernetes.UserInfo")
_REQUEST: Final = object_type("kubernetes.AdmissionRequest")
_NAMESPACE: Final = object_type("kubernetes.Namespace")
VARIABLES: Final = object_type("kubernetes.variables")
_STRINGS: Final = map_of(types.STRING, types.STRING)
FIELDS: Final[dict[str, dict[str, Type]]] = {
    _GVK.name: dict.fromkeys(("group", "version", "kind"), types.STRING),
    _GVR.name: dict.fromkeys(("group", "version", "resource"), types.STRING),
    _USER.name: {
        "username": types.STRING,
        "uid": types.STRING,
        "groups": list_of(types.STRING),
        "extra": map_of(types.STRING, list_of(types.STRING)),
    },
    _REQUEST.name: {
        "kind": _GVK,
        "resource": _GVR,
        "subResource": types.STRING,
        "requestKind": _GVK,
        "requestResource": _GVR,
        "requestSubResource": types.STRING,
        "name": types.STRING,
        "namespace": types.STRING,
        "operation": types.STRING,
        "userInfo": _USER,
        "dryRun": types.BOOL,
        "options": types.DYN,
    },
    _NAMESPACE.name: {
        "metadata": object_type("kubernetes.NamespaceMetadata"),
        "spec": object_type("kubernetes.NamespaceSpec"),
        "status": object_type("kubernetes.NamespaceStatus"),
    },
    "kubernetes.NamespaceSpec": {"finalizers": list_of(types.STRING)},
    "kubernetes.NamespaceStatus": {
        "conditions": list_of(object_type("kubernetes.NamespaceCondition")),
        "phase": types.STRING,
    },
    "kubernetes.NamespaceCondition": {
        **dict.fromkeys(("status", "type", "message", "reason"), types.STRING),
        "lastTransitionTime": types.TIMESTAMP,
    },
    "kubernetes.NamespaceMetadata": {
        **dict.fromkeys(
            ("name", "generateName", "namespace", "UID", "resourceVersion"),
            types.STRING,
        ),
        "labels": _STRINGS,
        "annotations": _STRINGS,
        "creationTimestamp": types.TIMESTAMP,
        "deletionTimestamp": types.TIMESTAMP,
        "deletionGracePeriodSeconds": types.INT,
        "generation": types.INT,
        "finalizers": list_of(types.STRING),
    },
    **RECORDS,
}
"""The fields of the record types that are available to all expressions of a policy."""
_SIMPLE: Final = frozenset(
    {
        types.BOOL,
        types.BYTES,
        types.DOUBLE,
        types.DURATION,
        types.INT,
        types.NULL,
        types.STRING,
        types.TIMESTAMP,
        types.UINT,
    }
)


def build_variables(
    variables: Iterable[NamedExpression],
    fields: dict[str, Type],
    environment: Environment,
) -> tuple[NamedExpressionIR, ...]:
    """Compile ``variables``; declare each in ``fields`` for later expressions."""
    built = []
    for variable in variables:
        expression, cel_type = compile_text(variable.expression, environment)
        # An expression can use only the variables that are declared before it.
        fields[variable.name] = declared(cel_type)
        built.append(NamedExpressionIR(variable.name, expression))
    return tuple(built)


def build_validations(
    validations: Iterable[CELValidation],
    rule_message: str,
    environment: Environment,
    messages: Environment,
) -> tuple[CelValidationIR, ...]:
    """Compile validations; ``messages``: the environment of messageExpressions."""
    built = []
    for validation in validations:
        message = validation.message_expression
        built.append(
            CelValidationIR(
                compile_text(validation.expression, environment, types.BOOL)[0],
                validation.message or rule_message,
                compile_text(message, messages, types.STRING)[0] if message else None,
            )
        )
    return tuple(built)


def build_cel(cel: CEL, rule_message: str) -> CelIR:
    """Compile ``validate.cel``; never raises for an invalid expression."""
    params = _params(cel)
    fields: dict[str, Type] = {}
    environment = cel_environment(fields, params=params is not None, authorizer=True)
    variables = build_variables(cel.variables, fields, environment)
    messages = cel_environment(fields, params=params is not None, authorizer=False)
    validations = build_validations(
        cel.expressions, rule_message, environment, messages
    )
    return CelIR(validations, variables, params)


def build_cel_preconditions(
    conditions: Iterable[NamedExpression], cel: CEL | None
) -> tuple[NamedExpressionIR, ...]:
    """Compile ``celPreconditions``, which can use params and the authorizer.

    KYVERNO: upstream's composited compiler already has the variables at this point, so
    the preconditions can use them.
    """
    fields: dict[str, Type] = {}
    params = cel is not None and _params(cel) is not None
    environment = cel_environment(fields, params=params, authorizer=True)
    build_variables(cel.variables if cel is not None else (), fields, environment)
    return compile_conditions(conditions, environment)


def build_match_conditions(
    conditions: Iterable[NamedExpression],
) -> tuple[NamedExpressionIR, ...]:
    """Compile a policy's ``webhookConfiguration.matchConditions``."""
    environment = cel_environment({}, params=False, authorizer=False)
    return compile_conditions(conditions, environment)


def compile_conditions(
    conditions: Iterable[NamedExpression], environment: Environment
) -> tuple[NamedExpressionIR, ...]:
    """Compile named conditions; never raises for an invalid expression."""
    return tuple(
        NamedExpressionIR(
            condition.name,
            compile_text(condition.expression, environment, types.BOOL)[0],
        )
        for condition in conditions
    )


def cel_environment(
    fields: dict[str, Type], *, params: bool, authorizer: bool
) -> Environment:
    """Return the environment for expressions; ``fields``: types of ``variables``."""
    variables = {
        "object": types.DYN,
        "oldObject": types.DYN,
        "request": _REQUEST,
        "namespaceObject": _NAMESPACE,
        "variables": VARIABLES,
    }
    if params:
        variables["params"] = types.DYN
    if authorizer:
        variables["authorizer"] = AUTHORIZER
    return Environment(variables, {**FIELDS, VARIABLES.name: fields})


def compile_text(
    source: str, environment: Environment, expected: Type | None = None
) -> tuple[Expression, Type]:
    """Compile one expression; a failure or a wrong type becomes the record's error."""
    try:
        expression, actual = compile_expression(source, environment)
    except ExpressionInvalid as error:
        return Expression(
            source, error=f"compilation failed: {error.message}"
        ), types.DYN
    if expected is not None and actual != expected:
        problem = f"must evaluate to {expected} but got {actual}"
        return Expression(source, error=problem), types.DYN
    assert expression.node is not None
    failure = constant_failure(expression.node)
    if failure:
        problem = f"program instantiation failed: {failure}"
        return Expression(source, error=problem), types.DYN
    return expression, actual


def declared(cel_type: Type, depth: int = CEL_TYPE_DEPTH_MAX) -> Type:
    """Return a variable's type for later expressions."""
    if cel_type in _SIMPLE:
        return cel_type
    if cel_type.name in ("list", "map") and depth:
        params = tuple(declared(param, depth - 1) for param in cel_type.params)
        return Type(cel_type.name, params)
    return types.DYN


def _params(cel: CEL) -> CelParamsIR | None:
    kind, ref = cel.param_kind, cel.param_ref
    # An empty block counts as absent.
    if kind is None or kind == ParamKind() or ref is None or ref == ParamRef():
        return None
    return CelParamsIR(
        api_version=kind.api_version,
        kind=kind.kind,
        name=ref.name,
        namespace=ref.namespace,
        selector=build_selector(ref.selector),
        deny_without=ref.parameter_not_found_action == "Deny",
    )
