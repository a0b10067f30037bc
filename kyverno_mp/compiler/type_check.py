"""Check a policy's CEL expressions against the schemas of the kinds that it matches.

Room: compiler. Takes: a decoded policy, a view of the cluster. Gives: warnings with
cel-go's messages. Next: webhook/policy_review.py. The warnings never change a verdict:
rules are evaluated with dynamic objects.
May touch: the cluster only through policy/ports.py.
Source: docs/behaviour/engine 10.7; Kyverno pkg/validation/policy/validate.go (end of
Validate) and pkg/admissionpolicy/{kyvernopolicy_checker,builder}.go; Kubernetes
apiserver pkg/admission/plugin/policy/validating/typechecking.go.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.compiler.cel_kinds.translatable import why_not
from kyverno_mp.compiler.rules.cel import FIELDS, VARIABLES, cel_environment, declared
from kyverno_mp.errors import BudgetExceeded, ExpressionInvalid
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.environment import Environment, RecordFields
from kyverno_mp.expr.cel.functions.authorization import AUTHORIZER
from kyverno_mp.expr.cel.linking.program import compile_expression
from kyverno_mp.expr.cel.schema_types import SchemaRecords
from kyverno_mp.expr.cel.types import Allowance, Type
from kyverno_mp.limits import (
    TYPE_CHECK_KINDS_MAX,
    TYPE_CHECK_STEPS_MAX,
    TYPE_CHECK_TEXT_CHARACTERS_MAX,
)
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.fields.match import MatchResources
from kyverno_mp.policy.fields.validation import CEL
from kyverno_mp.policy.ports import ClusterView, Kinds, KnownSchemas
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind
from kyverno_mp.values.kubernetes.openapi import name_of

_PLACE: Final = "spec.rules[0].validate.cel.expressions"
_FIXED: Final = {
    name: fields for name, fields in FIELDS.items() if name != AUTHORIZER.name
}
"""KYVERNO: the type checker does not know ``authorizer.requestResource`` and warns
about it even in a correct policy."""


class TypeWarning(NamedTuple):
    """The type errors of one expression, for one or more kinds."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}:{self.text}"


class _Kind(NamedTuple):
    """A kind, sorted in the order in which upstream reports them."""

    group: str
    version: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}/{self.version}, Kind={self.name}"


def type_warnings(policy: AnyPolicy, view: ClusterView) -> list[TypeWarning]:
    """Return the warnings; none for policies that upstream does not type-check.

    Skipped are kinds without a known schema, and errors beyond TYPE_CHECK_STEPS_MAX or
    TYPE_CHECK_TEXT_CHARACTERS_MAX.
    """
    cel = _checked(policy)
    if cel is None or view.schemas is None:
        return []
    kinds = _kinds(policy.spec.rules[0].match, view.kinds)
    if not kinds:
        return []
    parameter = _parameter(cel)
    checked_kinds = kinds if parameter is None else [*kinds, parameter]
    group_versions = dict.fromkeys((kind.group, kind.version) for kind in checked_kinds)
    schemas = view.schemas.schemas(group_versions)
    located_warnings: list[TypeWarning] = []
    characters_left = TYPE_CHECK_TEXT_CHARACTERS_MAX
    try:
        environments = list(_environments(cel, kinds, parameter, schemas))
        for path, expression in _expressions(cel):
            warnings = (
                _warning(kind, expression, environment)
                for kind, environment in environments
            )
            lines = "\n".join(filter(None, warnings))
            if lines:
                located_warnings.append(TypeWarning(path, lines.replace("\n", ";")))
                characters_left -= len(lines)
            if characters_left < 0:
                break
    except (BudgetExceeded, RecursionError):
        return located_warnings
    return located_warnings


def _expressions(cel: CEL) -> Iterator[tuple[str, str]]:
    for index, validation in enumerate(cel.expressions):
        yield f"{_PLACE}[{index}].expression", validation.expression
        if validation.message_expression:
            yield f"{_PLACE}[{index}].messageExpression", validation.message_expression


def _warning(kind: _Kind, source: str, environment: Environment) -> str:
    try:
        compile_expression(source, environment)
    except ExpressionInvalid as error:
        return f"{kind}: {error.message}\n"
    return ""


def _environments(
    cel: CEL,
    kinds: Sequence[_Kind],
    parameter: _Kind | None,
    known_schemas: KnownSchemas,
) -> Iterator[tuple[_Kind, Environment]]:
    """Yield the environment of expressions for each kind with a known schema."""
    schemas = SchemaRecords()
    allowance = Allowance(TYPE_CHECK_STEPS_MAX)
    params = None if parameter is None else _declare(schemas, parameter, known_schemas)
    for kind in kinds:
        subject = _declare(schemas, kind, known_schemas)
        if subject is None:
            continue
        fields: dict[str, Type] = {}
        environment = cel_environment(fields, params=False, authorizer=True)
        environment.variables.update(object=subject, oldObject=subject)
        if params is not None:
            environment.variables["params"] = params
        environment.records = _Records(schemas, {**_FIXED, VARIABLES.name: fields})
        environment.allowance = allowance
        for variable in cel.variables:
            fields[variable.name] = _type_of_variable(variable.expression, environment)
        yield kind, environment


def _type_of_variable(source: str, environment: Environment) -> Type:
    """Return the variable's type in later expressions; dyn after an error."""
    try:
        return declared(compile_expression(source, environment)[1])
    except ExpressionInvalid:
        return types.DYN


def _declare(
    schemas: SchemaRecords, kind: _Kind, known_schemas: KnownSchemas
) -> Type | None:
    group_schemas = known_schemas.get((kind.group, kind.version))
    name = name_of(group_schemas, *kind) if group_schemas is not None else ""
    return (
        schemas.declare(group_schemas, name, kind.name)
        if group_schemas and name
        else None
    )


class _Records:
    """The record types of the schemas and the ones that are common to all policies."""

    __slots__ = ("_fixed", "_schemas")

    def __init__(
        self, schemas: SchemaRecords, fixed: dict[str, dict[str, Type]]
    ) -> None:
        self._schemas = schemas
        self._fixed = fixed

    def get(self, name: str, /) -> RecordFields | None:
        return self._fixed.get(name) or self._schemas.get(name)


def _parameter(cel: CEL) -> _Kind | None:
    param_kind = cel.param_kind
    if param_kind is None or param_kind.api_version.count("/") > 1:
        return None
    group, _, version = param_kind.api_version.rpartition("/")
    return _Kind(group, version, param_kind.kind)


def _kinds(match: MatchResources, kinds: Kinds) -> list[_Kind]:
    """Return the kinds against which a ValidatingAdmissionPolicy would be checked.

    KYVERNO: upstream rejects the policy (``no unique match for kind``) if discovery
    finds a kind more than once, e.g. in several versions; here all of them are checked.
    """
    resources: dict[tuple[str, str], dict[str, None]] = {}
    filters = (*match.any, *match.all)
    for block in (match.resources, *(entry.resources for entry in filters)):
        for written in block.kinds:
            selector = parse_kind(written)
            if written == "*" or selector.subresource:
                continue
            for resolved in kinds.find(selector):
                group_version = (resolved.resource.group, resolved.resource.version)
                resources.setdefault(group_version, {})[resolved.resource.plural] = None
    checked_kinds: set[_Kind] = set()
    for group_version, plurals in resources.items():
        count = 0
        for plural in sorted(plurals):
            for kind in _kinds_of(kinds, *group_version, plural):
                checked_kinds.add(kind)
                count += 1
                if count == TYPE_CHECK_KINDS_MAX:
                    return sorted(checked_kinds)
    return sorted(checked_kinds)


def _kinds_of(kinds: Kinds, group: str, version: str, plural: str) -> Iterable[_Kind]:
    """K8S: the mapper treats the core group as any group; other groups match, too."""
    for resolved in kinds.find(KindSelector(group or "*", version, "*", "")):
        if resolved.resource.plural == plural:
            yield _Kind(resolved.resource.group, version, resolved.resource.kind)


def _checked(policy: AnyPolicy) -> CEL | None:
    """Return the policy's CEL if a ValidatingAdmissionPolicy can express the policy."""
    if why_not(policy):
        return None
    validate = policy.spec.rules[0].validate
    return None if validate is None else validate.cel
