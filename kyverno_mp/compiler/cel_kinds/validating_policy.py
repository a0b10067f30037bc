"""Compile ValidatingPolicies with their autogen copies and exceptions.

Room: compiler. Takes: decoded documents. Gives: ValidatingPolicyIR. If an expression
does not compile, the whole policy is rejected, as upstream does at admission.
Next: program/validating_policy.
Source: docs/behaviour/cel 4, 5, 6; Kyverno
pkg/cel/policies/vpol/compiler/compiler.go, pkg/cel/compiler/compiler.go.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self, TypeAlias, TypeVar

import msgspec

from kyverno_mp.compiler.admission_policy import build_constraints
from kyverno_mp.compiler.autogen.cel import copies_of
from kyverno_mp.compiler.described import describe
from kyverno_mp.compiler.rules.cel import FIELDS
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.errors import ExpressionInvalid, PolicyInvalid, Where
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.fold import constant_failure
from kyverno_mp.expr.cel.functions.kyverno import identities
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking.program import compile_expression
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.types import Type, list_of, object_type, opaque_type
from kyverno_mp.expr.compile_budget import EXCEPTION_TOO_COSTLY, for_exception, in_turn
from kyverno_mp.ir.cel import CelValidationIR, NamedExpressionIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import (
    CelExceptionIR,
    ValidatingBodyIR,
    ValidatingPolicyIR,
)
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument
from kyverno_mp.policy.cel_kinds.validating_policy import (
    JSON_MODE,
    AnyValidatingPolicy,
    CelPolicyException,
    Enabled,
    ValidatingPolicySpec,
)
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import AuditAnnotation, CELValidation
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.yaml_int import INT64_MAX

CompiledT = TypeVar("CompiledT")
_Compiled: TypeAlias = tuple[NamedExpressionIR, ...]
Unusable: TypeAlias = list[tuple[str, Problem]]
"""The problems of exceptions that do not compile, each with the exception's key."""
_CODE: Final = "policy.expression"
_CONDITIONS: Final = "spec.matchConditions"
_REQUEST: Final = "kubernetes.AdmissionRequest"
_EXCEPTIONS: Final = object_type("libs.Exception")
_VARIABLES: Final = object_type("kyverno.variables")
NAMES: Final[dict[str, Type]] = {
    "object": types.DYN,
    "oldObject": types.DYN,
    "request": object_type(_REQUEST),
    "namespaceObject": object_type("kubernetes.Namespace"),
    "exceptions": _EXCEPTIONS,
    "variables": _VARIABLES,
    "resource": opaque_type("resource.Context"),
    "globalContext": opaque_type("globalcontext.Context"),
    "image": opaque_type("imagedata.Context"),
    "http": opaque_type("http.Context"),
    "json": opaque_type("json.Json"),
    "yaml": opaque_type("yaml.Yaml"),
}
_OUTSIDE: Final = ("resource", "globalContext", "image", "http", "variables")
EXCEPTION_NAMES: Final = {
    name: kind for name, kind in NAMES.items() if name not in _OUTSIDE
}
"""Variables in an exception's conditions in a service: the author of an exception must
not make calls with the policy's permissions, or read data that the policy read."""
_RECORDS: Final[dict[str, dict[str, Type]]] = {
    **FIELDS,
    **identities.RECORDS,
    _REQUEST: {**FIELDS[_REQUEST], "object": types.DYN, "oldObject": types.DYN},
    _EXCEPTIONS.name: {
        "allowedImages": list_of(types.STRING),
        "allowedValues": list_of(types.STRING),
    },
}
_PRIORITY: Final = "polex.kyverno.io/priority"
BOOL: Final = (types.BOOL,)
_TEXT: Final = (types.STRING,)
_TEXT_OR_NULL: Final = (types.STRING, types.NULL)


def compile_validating_policy(
    document: AnyValidatingPolicy, exceptions: Iterable[CelPolicyException] = ()
) -> ValidatingPolicyIR:
    """Compile a policy with the exceptions that name it.

    Raises: DocumentInvalid with every expression that does not compile.
    """
    return usable(document, *compile_with_exceptions(document, exceptions))


def usable(
    document: AnyCelDocument, compiled: CompiledT, unusable: Unusable
) -> CompiledT:
    """Return a compiled policy; raise DocumentInvalid if it has unusable exceptions."""
    refuse(document, problems_of_exceptions(unusable))
    return compiled


def refuse(document: AnyCelDocument, problems: Iterable[Problem]) -> None:
    """Raise DocumentInvalid if there are problems."""
    unique = list(dict.fromkeys(problems))
    if unique:
        raise DocumentInvalid(unique, Where(policy=key_of(document)))


def compile_with_exceptions(
    document: AnyValidatingPolicy,
    exceptions: Iterable[CelPolicyException] = (),
    names: dict[str, Type] = NAMES,
) -> tuple[ValidatingPolicyIR, Unusable]:
    """Compile a policy with the exceptions that compile.

    Also return the problems of the other exceptions, each with the exception's key: in
    a service the author of an exception must not be able to revoke another user's
    policy. ``names``: the variables of the exceptions' conditions.
    Raises: DocumentInvalid with every expression of the policy that does not compile.
    """
    bodies: list[ValidatingBodyIR] = []
    problems: list[Problem] = []
    is_json = document.mode == JSON_MODE
    for copy, spec in (("", document.spec), *copies_of(document.spec)):
        builder = Builder(document.metadata.namespace)
        bodies.append(builder.body(copy, spec, is_json=is_json))
        problems += builder.problems
    refuse(document, problems)
    attached, unusable = compile_exceptions(
        naming(exceptions, document),
        lambda: Builder(document.metadata.namespace, names).declared(builder),
    )
    compiled = ValidatingPolicyIR(
        policy=policy_of(document),
        bodies=tuple(bodies),
        exceptions=attached,
        actions=document.spec.validation_actions or ("Deny",),
        is_json=is_json,
        effects=effects_of((bodies, attached)),
    )
    return compiled, unusable


def expression_problems(document: AnyValidatingPolicy) -> list[Problem]:
    """Return the problems of all expressions in the policy, without its copies."""
    builder = Builder(document.metadata.namespace)
    builder.body("", document.spec, is_json=document.mode == JSON_MODE)
    return builder.problems


def naming(
    exceptions: Iterable[CelPolicyException], document: AnyCelDocument
) -> list[CelPolicyException]:
    """Return the exceptions that name the policy."""
    return [exception for exception in exceptions if names_policy(exception, document)]


def names_policy(exception: CelPolicyException, document: AnyCelDocument) -> bool:
    """Return whether the exception names the policy. KYVERNO: by name and kind only."""
    return any(
        (ref.name, ref.kind) == (document.metadata.name, document.kind)
        for ref in exception.spec.policy_refs
    )


def key_of(document: AnyCelDocument) -> str:
    """Return ``namespace/name``, or only ``name``."""
    namespace, name = document.metadata.namespace, document.metadata.name
    return f"{namespace}/{name}" if namespace else name


def compile_exception(
    exception: CelPolicyException, builder: "Builder"
) -> CelExceptionIR:
    """Compile an exception to a policy."""
    spec = exception.spec
    builder.problems += exception.expiry_problems()
    return CelExceptionIR(
        key=exception.key,
        conditions=builder.conditions(spec.match_conditions),
        images=spec.images,
        allowed_values=spec.allowed_values,
        is_pass=spec.report_result == "pass",
        priority=_priority(exception.metadata.labels.get(_PRIORITY, "")),
        expires_at_ns=exception.expires_at_ns,
    )


def _priority(label: str) -> int:
    """Return the priority of an exception, 0 if the label is no priority.

    GO: like strconv.Atoi, which refuses numbers beyond an int64; a label value cannot
    contain any other digits.
    """
    priority = int(label) if label.isascii() and label.isdigit() else 0
    return priority if priority <= INT64_MAX else 0


def compile_exceptions(
    exceptions: Iterable[CelPolicyException], new_builder: Callable[[], "Builder"]
) -> tuple[tuple[CelExceptionIR, ...], Unusable]:
    """Compile the exceptions to one policy, each with a separate budget.

    Also return the problems of the unusable exceptions, each with the exception's key.
    ``new_builder`` returns a builder without problems.
    """
    named = list(exceptions)
    attached: dict[int, CelExceptionIR] = {}
    unusable: Unusable = []
    for number in in_turn(
        range(len(named)),
        lambda number: named[number].metadata.namespace,
        lambda number: (len(msgspec.json.encode(named[number])), number),
    ):
        exception, builder = named[number], new_builder()
        try:
            with for_exception(exception.metadata.namespace):
                compiled = compile_exception(exception, builder)
        except PolicyInvalid as error:
            if error.code != EXCEPTION_TOO_COSTLY:
                raise
            builder.problems = [Problem(error.code, _CONDITIONS, "", error.message)]
        else:
            if not builder.problems:
                attached[number] = compiled
        unusable += [(exception.key, problem) for problem in builder.problems]
    return tuple(compiled for _, compiled in sorted(attached.items())), unusable


def problems_of_exceptions(unusable: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Return the problems of exceptions, each with its exception in the path."""
    return [
        problem._replace(path=f"PolicyException {key}: {problem.path}")
        for key, problem in unusable
    ]


def policy_of(
    document: AnyValidatingPolicy | MutatingPolicy | ImageValidatingPolicy,
) -> PolicyIR:
    """Return the record of a policy's metadata and switches."""
    evaluation = document.spec.evaluation
    return msgspec.structs.replace(
        describe(document.kind, document.metadata, document.metadata.namespace),
        failure_policy=document.spec.failure_policy,
        admission=evaluation is None or is_on(evaluation.admission),
        background=evaluation is None or is_on(evaluation.background),
    )


def is_on(switch: Enabled | None) -> bool:
    """Return whether a switch that is on by default is on."""
    return switch is None or switch.enabled is not False


class Builder:
    """Compiles the expressions of one copy of a policy and collects their problems."""

    def __init__(
        self,
        namespace: str,
        names: dict[str, Type] = NAMES,
        library: Callable[..., Library] = kyverno_library,
    ) -> None:
        """``names``, ``library``: the policy kind's variables and functions."""
        self.problems: list[Problem] = []
        self._fields: dict[str, Type] = {}
        self.environment = Environment(
            names,
            {**_RECORDS, _VARIABLES.name: self._fields},
            library=library(namespaced=bool(namespace)),
        )

    def declared(self, policy: "Builder") -> Self:
        """Declare the variables of a policy, with their types, for its exceptions.

        KYVERNO: upstream declares them, but they have no value there.
        """
        self._fields.update(policy._fields)
        return self

    def body(
        self, copy: str, spec: ValidatingPolicySpec, *, is_json: bool
    ) -> ValidatingBodyIR:
        """Compile one copy of the policy.

        KYVERNO: variables are declared after the match conditions, so match conditions
        cannot use them; evaluation mode JSON has no audit annotations.
        """
        return ValidatingBodyIR(
            copy=copy,
            constraints=build_constraints(spec.match_constraints),
            conditions=self.conditions(spec.match_conditions),
            variables=self.variables(spec.variables),
            validations=self.validations(spec.validations),
            annotations=() if is_json else self.annotations(spec.audit_annotations),
        )

    def conditions(
        self, conditions: Sequence[NamedExpression], path: str = "spec.matchConditions"
    ) -> _Compiled:
        """Compile the match conditions of a policy or an exception."""
        return tuple(
            NamedExpressionIR(
                condition.name,
                self.compiled(
                    condition.expression, f"{path}[{index}].expression", BOOL
                )[0],
            )
            for index, condition in enumerate(conditions)
        )

    def variables(self, variables: Sequence[NamedExpression]) -> _Compiled:
        """Compile variables; each can use the earlier ones, with their types."""
        built = []
        for index, variable in enumerate(variables):
            path = f"spec.variables[{index}].expression"
            expression, kind = self.compiled(variable.expression, path)
            self._fields[variable.name] = kind
            built.append(NamedExpressionIR(variable.name, expression))
        return tuple(built)

    def annotations(self, annotations: Sequence[AuditAnnotation]) -> _Compiled:
        """Compile ``auditAnnotations``."""
        return tuple(
            NamedExpressionIR(
                annotation.key,
                self.compiled(
                    annotation.value_expression,
                    f"spec.auditAnnotations[{index}].valueExpression",
                    _TEXT_OR_NULL,
                )[0],
            )
            for index, annotation in enumerate(annotations)
        )

    def validations(
        self, validations: Sequence[CELValidation]
    ) -> tuple[CelValidationIR, ...]:
        """Compile ``validations``."""
        return tuple(
            self._validation(validation, f"spec.validations[{index}]")
            for index, validation in enumerate(validations)
        )

    def _validation(self, validation: CELValidation, path: str) -> CelValidationIR:
        expression, _ = self.compiled(validation.expression, f"{path}.expression", BOOL)
        message = None
        if validation.message_expression:
            field = f"{path}.messageExpression"
            message, _ = self.compiled(validation.message_expression, field, _TEXT)
        return CelValidationIR(expression, validation.message, message)

    def compiled(
        self, source: str, path: str, expected: Sequence[Type] = ()
    ) -> tuple[Expression, Type]:
        """Compile an expression of one of these types; () allows any type."""
        try:
            expression, kind = compile_expression(source, self.environment)
        except ExpressionInvalid as error:
            return self.refused(source, path, error.message), types.DYN
        if expected and kind not in expected:
            kinds = " or ".join(each.name for each in expected)
            either = "either of" if len(expected) > 1 else "of"
            problem = f"output is expected to be {either} type {kinds}"
            return self.refused(source, path, problem), types.DYN
        assert expression.node is not None
        failure = constant_failure(expression.node)
        if failure:
            return self.refused(source, path, failure), types.DYN
        return expression, kind

    def refused(self, source: str, path: str, reason: str) -> Expression:
        """Record an expression's problem; return a placeholder for the expression."""
        upstream = f"{path}: Invalid value: {quote(source)}: {reason}"
        self.problems.append(Problem(_CODE, path, "", reason, upstream))
        return Expression(source, error=reason)
