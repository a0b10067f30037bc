"""Rewrite match and exclude as resource rules and a CEL expression.

Room: cli. Takes: a rule. Gives: Matched. Next: policy.py.
Source: docs/behaviour/engine 1; docs/behaviour/cel 3.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.known_kinds import CONNECTED, resources_of_kind
from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    all_of,
    any_of,
    items,
    like,
    literal,
)
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.match import (
    MatchFilters,
    MatchResources,
    ResourceDescription,
    ResourceFilter,
)
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind
from kyverno_mp.values.wildcard import contains_wildcard, matches

_NAMESPACE: Final = "Namespace"
CONNECT: Final = "CONNECT"


_PODS: Final = frozenset(
    KindSelector(group, version, "Pod", "")
    for group in ("*", "")
    for version in ("*", "v1")
)


class Resource(NamedTuple):
    """A resource of the API server, and the kind of the objects in its requests.

    ``group``, ``version``: "*" = any; ``home``: the built-in group, used if ``group``
    is "*"; ``plural``: with the subresource to which clients connect.
    """

    group: str
    version: str
    plural: str
    kind: str
    home: str = ""

    @property
    def subresource(self) -> str:
        """The subresource to which clients connect, "" without one."""
        return self.plural.partition("/")[2]


class Matched(NamedTuple):
    """A rule's match; ``guard`` is "true" if resources and operations suffice."""

    resources: tuple[Resource, ...]
    operations: tuple[str, ...]
    guard: str


def matched(rule: Rule, default: Sequence[str], root: str) -> Matched:
    """Rewrite a rule's match and exclude. Raises: NotRewritten.

    ``default``: the operations on which such a rule is evaluated. ``root``: the object.
    """
    match = matched_by(filters_of(rule.match, "match"), default, root, rule.match)
    if rule.exclude is None:
        return match
    if CONNECT in match.operations:
        raise NotRewritten("exclude beside a subresource")
    excluded = excluded_by(rule.exclude, match.operations, root)
    return match._replace(guard=all_of((match.guard, f"!({excluded})")))


def matched_by(
    filters: Sequence[ResourceDescription],
    default: Sequence[str],
    root: str,
    block: MatchResources | MatchFilters,
) -> Matched:
    """Rewrite the filters of ``match``. Raises: NotRewritten."""
    if not all(given.kinds for given in filters):
        # Such a filter would match all kinds.
        raise NotRewritten("match without kinds")
    connects = CONNECT in default
    resources = dict.fromkeys(
        resource
        for given in filters
        for text in given.kinds
        for resource in resources_of_text(text, connects=connects)
    )
    if any(resource.subresource for resource in resources):
        return _connected(filters, tuple(resources))
    default = [operation for operation in default if operation != CONNECT]
    operations = _operations(filters, default)
    guard = _guard(filters, operations, root, is_all=bool(block.all))
    return Matched(tuple(resources), operations, guard)


def _connected(
    filters: Sequence[ResourceDescription], resources: tuple[Resource, ...]
) -> Matched:
    """Return the match of a rule on subresources, whose objects have no metadata."""
    if not all(resource.subresource for resource in resources):
        raise NotRewritten("subresources beside other kinds")
    for one in filters:
        if one != ResourceDescription(kinds=one.kinds, operations=one.operations):
            raise NotRewritten("subresources by more than their kinds")
    return Matched(resources, _operations(filters, (CONNECT,)), "true")


def excluded_by(
    block: MatchResources | MatchFilters, operations: Sequence[str], root: str
) -> str:
    """Return an expression that is true for excluded objects. Raises: NotRewritten."""
    clauses = [
        all_of(_clauses(one, operations, root, kinds=True))
        for one in filters_of(block, "exclude")
    ]
    return all_of(clauses) if block.all else any_of(clauses)


def _guard(
    filters: Sequence[ResourceDescription],
    operations: Sequence[str],
    root: str,
    *,
    is_all: bool,
) -> str:
    """Return an expression for what resources and operations cannot express."""
    others = [all_of(_clauses(one, operations, root, kinds=False)) for one in filters]
    if all(one == "true" for one in others) and not (is_all and len(filters) > 1):
        return "true"
    is_mixed = len({frozenset(_names_of(one)) for one in filters}) > 1
    if not is_mixed and not is_all and "true" in others:
        return "true"
    found = [all_of(_clauses(one, operations, root, kinds=is_mixed)) for one in filters]
    return all_of(found) if is_all else any_of(found)


def kinds_clause(kinds: Iterable[str], root: str) -> str:
    """Return an expression that tests whether the object has one of the kinds."""
    found = sorted(set(kinds))
    if len(found) == 1:
        return f"{root}.kind == '{found[0]}'"
    return f"{root}.kind in {items(found)}"


def filters_of(
    block: MatchResources | MatchFilters, name: str, *, selects: bool = False
) -> list[ResourceDescription]:
    """Return the filters of match or exclude. Raises: NotRewritten.

    ``selects``: the caller rewrites the selectors of an only filter.
    """
    given: list[ResourceFilter] = [*block.any, *block.all]
    if isinstance(block, MatchResources):
        given.append(
            ResourceFilter(
                block.roles, block.cluster_roles, block.subjects, block.resources
            )
        )
    for one in given:
        if one.roles or one.cluster_roles or one.subjects:
            raise NotRewritten(f"roles or subjects in {name}")
    found = [one.resources for one in given]
    if isinstance(block, MatchResources) and found[-1] == ResourceDescription():
        found.pop()
    for description in found:
        if not (selects and len(found) == 1):
            _refuse_selectors(description, name)
        _refuse(description, name)
    if not found:
        raise NotRewritten(f"an empty {name}")
    return found


def _refuse_selectors(resource_description: ResourceDescription, name: str) -> None:
    if not _is_plain(resource_description.selector):
        raise NotRewritten(f"selector in {name}")
    if resource_description.namespace_selector is not None:
        raise NotRewritten(f"namespaceSelector in {name}")


def _refuse(resource_description: ResourceDescription, name: str) -> None:
    for is_given, what in (
        (resource_description.annotations is not None, "annotations"),
        (resource_description == ResourceDescription(), "an empty filter"),
    ):
        if is_given:
            raise NotRewritten(f"{what} in {name}")


def _is_plain(selector: LabelSelector | None) -> bool:
    """Return whether a selector has labels with values, and no expressions.

    A value may have wildcards if it does not match an empty text: a missing label would
    match it, too.
    """
    if selector is None:
        return True
    is_plain = all(
        key and not contains_wildcard(key) and not matches(value, "")
        for key, value in selector.match_labels.items()
    )
    return is_plain and bool(selector.match_labels) and not selector.match_expressions


def resources_of_text(text: str, *, connects: bool = False) -> list[Resource]:
    """Return the resources of a kind as a policy writes it. Raises: NotRewritten.

    ``connects``: the caller rewrites subresources to which clients connect.
    """
    selector = parse_kind(text)
    options = CONNECTED.get(selector.subresource) if connects else None
    if options is not None and selector._replace(subresource="") in _PODS:
        plural = f"pods/{selector.subresource}"
        return [Resource(selector.group, selector.version, plural, options)]
    if contains_wildcard(selector.kind) or selector.subresource:
        raise NotRewritten(f"kind {text}")
    # KYVERNO: a kind without a group matches the kinds of that name in all groups.
    group, version = selector.group, selector.version
    if any(one != "*" and contains_wildcard(one) for one in (group, version)):
        raise NotRewritten(f"kind {text}")
    resources = [
        Resource(group, version, one.plural, one.kind, one.group)
        for one in resources_of_kind(selector)
    ]
    if not resources:
        raise NotRewritten(f"kind {text}, whose resource is not known")
    return resources


def _operations(
    filters: Sequence[ResourceDescription], default: Sequence[str]
) -> tuple[str, ...]:
    wanted = {op for one in filters for op in (one.operations or default)}
    operations = tuple(op for op in default if op in wanted)
    if not operations:
        raise NotRewritten("operations on which the rule is not evaluated")
    return operations


def _names_of(resource_description: ResourceDescription) -> set[str]:
    return {
        resource.kind
        for text in resource_description.kinds
        for resource in resources_of_text(text)
    }


def _clauses(
    resource_description: ResourceDescription,
    operations: Sequence[str],
    root: str,
    *,
    kinds: bool,
) -> list[str]:
    """Return a filter's conditions; ``kinds``: include the one on the object's kind."""
    clauses = []
    if kinds and resource_description.kinds:
        clauses.append(kinds_clause(_names_of(resource_description), root))
    if resource_description.name:
        clauses.append(like(_name_of(root), resource_description.name))
    if resource_description.names:
        clauses.append(
            any_of(like(_name_of(root), name) for name in resource_description.names)
        )
    if resource_description.namespaces:
        place = _namespace_of(root)
        clauses.append(
            any_of(
                like(place, namespace) for namespace in resource_description.namespaces
            )
        )
    if resource_description.selector is not None:
        clauses += [
            like(f"{root}.metadata.?labels[?{literal(key)}].orValue('')", value)
            for key, value in resource_description.selector.match_labels.items()
        ]
    if resource_description.operations and not set(operations) <= set(
        resource_description.operations
    ):
        clauses.append(f"request.operation in {items(resource_description.operations)}")
    return clauses


def _name_of(root: str) -> str:
    name = f"{root}.metadata.?name"
    return f"{name}.orValue({root}.metadata.?generateName.orValue(''))"


def _namespace_of(root: str) -> str:
    return (
        f"({root}.kind == '{_NAMESPACE}' ? {root}.metadata.?name :"
        f" {root}.metadata.?namespace).orValue('')"
    )
