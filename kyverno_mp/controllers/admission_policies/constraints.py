"""Translate match, exclude and exceptions into the constraints of native policies.

Room: controllers. Takes: a rule, its exceptions, a Directory. Gives: Constraints:
matchConstraints and matchConditions. Next:
controllers/admission_policies/from_cluster_policy.py.
Source: docs/behaviour/controllers 13; Kyverno pkg/admissionpolicy/builder.go (v1.18.2).

The rules have upstream's form. Parts that this form cannot express become match
conditions. Upstream drops them, or mixes them into another filter.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.compiler.cel_kinds.translatable import SKIP
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.match import ResourceDescription
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import parse_kind

_OPERATIONS: Final = ("CREATE", "UPDATE", "CONNECT", "DELETE")
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_PODS: Final = "pods"
_WITH_PODS: Final = "pods/ephemeralcontainers"
_NAMESPACES: Final = "namespaces"
_HAS_NAMESPACE: Final = (
    f'request.namespace != "" && request.resource.resource != "{_NAMESPACES}"'
)


class NotTranslated(Exception):
    """Raised if a policy cannot be translated, with a text for its status."""


class Condition(NamedTuple):
    """A match condition."""

    name: str
    expression: str

    def raw(self) -> Json:
        """Return the condition as the API server stores it."""
        return {"name": self.name, "expression": self.expression}


class Constraints(NamedTuple):
    """``matchConstraints``, and conditions for parts that they cannot express."""

    raw: Json
    conditions: tuple[Condition, ...]


class _Rules:
    """Rules under construction, one per version, operations and names."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._resources: dict[
            tuple[str, str, tuple[str, ...], tuple[str, ...]], set[str]
        ] = {}
        self.cluster_scoped = False
        """Whether any of the rules match cluster-scoped objects."""

    def add(self, resource_description: ResourceDescription) -> None:
        """Add the kinds of a filter. Raises: NotTranslated."""
        names = names_of(resource_description)
        operations = operations_of(resource_description)
        for text in resource_description.kinds:
            if text == "*":
                self.put("*", "*", operations, names, ["*"])
                self.cluster_scoped = True
                continue
            one = self._find(text)
            resources = [one.name, _WITH_PODS] if one.name == _PODS else [one.name]
            self.put(one.group, one.version, operations, names, resources)
            self.cluster_scoped |= not one.namespaced

    def put(
        self,
        group: str,
        version: str,
        operations: tuple[str, ...],
        names: tuple[str, ...],
        resources: Iterable[str],
    ) -> None:
        """Add resources of one version."""
        key = group, version, operations, names
        self._resources.setdefault(key, set()).update(resources)

    def raw(self) -> list[Json]:
        """Return the rules as the API server stores them."""
        return [
            _rule_of(group, version, operations, names, sorted(resources))
            for (group, version, operations, names), resources in (
                self._resources.items()
            )
        ]

    def _find(self, text: str) -> Resource:
        found = self._directory.find(parse_kind(text))
        if len(found) != 1:
            raise NotTranslated(f"{SKIP}: no unique match for kind {text}.")
        return found[0]


def constraints_of(
    rule: Rule, exceptions: Sequence[PolicyException], directory: Directory
) -> Constraints:
    """Translate a rule that compiler/cel_kinds/translatable.py accepts.

    Raises: NotTranslated.
    """
    matched, excluded = _Rules(directory), _Rules(directory)
    conditions: list[Condition] = []
    raw: Json = {"matchPolicy": "Equivalent"}
    for given in _descriptions(rule.match.resources, rule.match.any, rule.match.all):
        matched.add(given)
        _select(raw, given)
    raw["resourceRules"] = matched.raw()
    conditions += _scopes(rule, is_cluster_scoped=matched.cluster_scoped)
    if rule.exclude is not None:
        block = rule.exclude
        for given in _descriptions(block.resources, block.any, block.all):
            conditions += _exclude(excluded, given, f"exclude-{len(conditions)}")
    for exception in exceptions:
        match = exception.spec.match
        for given in _descriptions(ResourceDescription(), match.any, match.all):
            conditions += _exclude(excluded, given, f"exception-{len(conditions)}")
    rules = excluded.raw()
    if rules:
        raw["excludeResourceRules"] = rules
    return Constraints(raw, tuple(conditions))


def names_of(resource_description: ResourceDescription) -> tuple[str, ...]:
    """Return the names that a filter matches, () for all names."""
    return (
        (*resource_description.names, resource_description.name)
        if resource_description.name
        else resource_description.names
    )


def operations_of(resource_description: ResourceDescription) -> tuple[str, ...]:
    """Return the operations that a filter matches."""
    return tuple(dict.fromkeys(resource_description.operations)) or _OPERATIONS


def _descriptions(
    inline: ResourceDescription, *filters: Iterable[Json]
) -> list[ResourceDescription]:
    found = [inline, *(one.resources for block in filters for one in block)]
    return [one for one in found if one != ResourceDescription()]


def _select(raw: Json, resource_description: ResourceDescription) -> None:
    """Set the namespaceSelector and the objectSelector."""
    selector: Json = {}
    if resource_description.namespace_selector is not None:
        selector = resource_description.namespace_selector.raw()
    if resource_description.namespaces:
        within = {
            "key": _NAME_LABEL,
            "operator": "In",
            "values": list(resource_description.namespaces),
        }
        terms = [within, *selector.get("matchExpressions", ())]
        selector = {**selector, "matchExpressions": terms}
    if selector:
        raw["namespaceSelector"] = selector
    if resource_description.selector is not None:
        raw["objectSelector"] = resource_description.selector.raw()


def _scopes(rule: Rule, *, is_cluster_scoped: bool) -> list[Condition]:
    """Return a condition that excludes cluster-scoped objects, if one is needed.

    K8S: a namespaceSelector matches every cluster-scoped object.
    """
    if not is_cluster_scoped:
        return []
    filters = (*rule.match.any, *rule.match.all)
    given = (rule.match.resources, *(one.resources for one in filters))
    if any(one.namespace_selector is not None for one in given):
        return [Condition("has-namespace", _HAS_NAMESPACE)]
    names = dict.fromkeys(name for one in given for name in one.namespaces)
    if names:
        return [Condition("has-namespace", f"request.namespace in {_list_of(names)}")]
    return []


def _exclude(
    rules: _Rules, resource_description: ResourceDescription, name: str
) -> list[Condition]:
    """Add rules for the kinds of a filter; return a condition if it has no kinds.

    KYVERNO: for namespaces without kinds, upstream excludes the Namespaces themselves
    instead of the objects in them.
    """
    rules.add(resource_description)
    if resource_description.kinds:
        return []
    if resource_description.namespaces:
        operations = operations_of(resource_description)
        rules.put("", "v1", operations, resource_description.namespaces, [_NAMESPACES])
    clauses = []
    if resource_description.namespaces:
        clauses.append(
            f"request.namespace in {_list_of(resource_description.namespaces)}"
        )
    if names_of(resource_description):
        clauses.append(f"request.name in {_list_of(names_of(resource_description))}")
    if resource_description.operations:
        clauses.append(
            f"request.operation in {_list_of(resource_description.operations)}"
        )
    return [Condition(name, f"!({' && '.join(clauses)})")] if clauses else []


def _rule_of(
    group: str,
    version: str,
    operations: Sequence[str],
    names: Sequence[str],
    resources: Sequence[str],
) -> Json:
    raw: Json = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "*",
    }
    if names:
        raw["resourceNames"] = list(names)
    return raw


def text_of(value: str) -> str:
    """Return a string as a CEL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


def _list_of(values: Iterable[str]) -> str:
    return f"[{', '.join(map(text_of, values))}]"
