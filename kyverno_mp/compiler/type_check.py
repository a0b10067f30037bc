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
    wanted = kinds if parameter is None else [*kinds, parameter]
    asked = dict.fromkeys((kind.group, kind.version) for kind in wanted)
    known = view.schemas.schemas(asked)
    found: list[TypeWarning] = []
    left = TYPE_CHECK_TEXT_CHARACTERS_MAX
    try:
        environments = list(_environments(cel, kinds, parameter, known))
        for place, text in _expressions(cel):
            warnings = (_warning(kind, text, one) for kind, one in environments)
            lines = "\n".join(filter(None, warnings))
            if lines:
                found.append(TypeWarning(place, lines.replace("\n", ";")))
                left -= len(lines)
            if left < 0:
                break
    except (BudgetExceeded, RecursionError):
        return found
    return found


def _expressions(cel: CEL) -> Iterator[tuple[str, str]]:
    for index, one in enumerate(cel.expressions):
        yield f"{_PLACE}[{index}].expression", one.expression
        if one.message_expression:
            yield f"{_PLACE}[{index}].messageExpression", one.message_expression


def _warning(kind: _Kind, text: str, environment: Environment) -> str:
    try:
        compile_expression(text, environment)
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


def _type_of_variable(text: str, environment: Environment) -> Type:
    """Return the variable's type in later expressions; dyn after an error."""
    try:
        return declared(compile_expression(text, environment)[1])
    except ExpressionInvalid:
        return types.DYN


def _declare(
    schemas: SchemaRecords, kind: _Kind, known_schemas: KnownSchemas
) -> Type | None:
    given = known_schemas.get((kind.group, kind.version))
    name = name_of(given, *kind) if given is not None else ""
    return schemas.declare(given, name, kind.name) if given and name else None


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
    given = cel.param_kind
    if given is None or given.api_version.count("/") > 1:
        return None
    group, _, version = given.api_version.rpartition("/")
    return _Kind(group, version, given.kind)


def _kinds(match: MatchResources, kinds: Kinds) -> list[_Kind]:
    """Return the kinds against which a ValidatingAdmissionPolicy would be checked.

    KYVERNO: upstream rejects the policy (``no unique match for kind``) if discovery
    finds a kind more than once, e.g. in several versions; here all of them are checked.
    """
    resources: dict[tuple[str, str], dict[str, None]] = {}
    filters = (*match.any, *match.all)
    for given in (match.resources, *(one.resources for one in filters)):
        for text in given.kinds:
            selector = parse_kind(text)
            if text == "*" or selector.subresource:
                continue
            for one in kinds.find(selector):
                place = (one.resource.group, one.resource.version)
                resources.setdefault(place, {})[one.resource.plural] = None
    found: set[_Kind] = set()
    for place, plurals in resources.items():
        count = 0
        for plural in sorted(plurals):
            for kind in _kinds_of(kinds, *place, plural):
                found.add(kind)
                count += 1
                if count == TYPE_CHECK_KINDS_MAX:
                    return sorted(found)
    return sorted(found)


def _kinds_of(kinds: Kinds, group: str, version: str, plural: str) -> Iterable[_Kind]:
    """K8S: the mapper treats the core group as any group; other groups match, too."""
    for one in kinds.find(KindSelector(group or "*", version, "*", "")):
        if one.resource.plural == plural:
            yield _Kind(one.resource.group, version, one.resource.kind)


def _checked(policy: AnyPolicy) -> CEL | None:
    """Return the policy's CEL if a ValidatingAdmissionPolicy can express the policy."""
    if why_not(policy):
        return None
    validate = policy.spec.rules[0].validate
    return None if validate is None else validate.cel
