"""Rewrite clean-up policies as DeletingPolicies.

Room: cli. Takes: a CleanupPolicy or ClusterCleanupPolicy. Gives: the document of a
DeletingPolicy, or NotRewritten with the construct that has no equivalent. Next:
deletion_proof.py compares both.
Source: docs/behaviour/controllers 7; docs/behaviour/cel 10.3, 12.

A scheduled run sees stored objects, which have a name and the time of their creation.
DeletingPolicies name each resource with its group and version, without wildcards.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.fix.rewrite.conditions import conditions_of
from kyverno_mp.cli.fix.rewrite.match import (
    Resource,
    excluded_by,
    filters_of,
    matched_by,
    resources_of_text,
)
from kyverno_mp.cli.fix.rewrite.query_values import Code, Moment, Names
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.fix.rewrite.typed import root_of
from kyverno_mp.cli.fix.rewrite.variables import with_context
from kyverno_mp.policy.documents.cleanup_policy import (
    BUDGET,
    AnyCleanupPolicy,
    CleanupPolicy,
)
from kyverno_mp.policy.fields.match import ResourceDescription
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY, IN_CEL
from kyverno_mp.values.wildcard import contains_wildcard

_IN_CEL: Final = IN_CEL[CLEANUP_POLICY.name]
_OBJECT: Final = "object"
_NO_OPERATION: Final = ("",)
_NAMESPACE: Final = "Namespace"
_NAME: Final = (
    "object.metadata.?name.orValue(object.metadata.?generateName.orValue(''))"
)
_IN_NAMESPACE: Final = "object.metadata.?namespace.orValue('')"
_BY_KIND: Final = (
    f"(object.kind == '{_NAMESPACE}' ? object.metadata.?name"
    " : object.metadata.?namespace).orValue('')"
)
"""The namespace that a filter tests: that of a Namespace is its name."""
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class Deletion(NamedTuple):
    """A DeletingPolicy, and the resources whose objects it deletes."""

    document: Json
    resources: tuple[Resource, ...]


def deletion_of(policy: AnyCleanupPolicy) -> Deletion:
    """Rewrite a clean-up policy. Raises: NotRewritten."""
    spec = policy.spec
    _refuse(policy)
    filters = filters_of(spec.match, "match", selects=True)
    resources = _stored_resources(filters)
    rules = _resource_rules(resources)
    constraints: Json = {"resourceRules": rules}
    if len(filters) == 1:
        named, selectors = _without_selectors(filters[0], resources)
        filters, names = _without_names(named)
        rules[:] = [{**rule, **names} for rule in rules]
        constraints.update(selectors)
    match = matched_by(filters, _NO_OPERATION, _OBJECT, spec.match)
    conditions = [] if match.guard == "true" else [("match", match.guard)]
    if spec.exclude is not None:
        excluded = excluded_by(spec.exclude, _NO_OPERATION, _OBJECT)
        conditions.append(("exclude", f"!({excluded})"))
    _refuse_ambiguous(policy, resources, conditions)
    known = with_context(spec.context, _names(resources))
    raw = spec.conditions.raw() if spec.conditions is not None else {}
    tests = [{"all": [one]} for one in raw.get("all") or ()]
    tests += [{"any": raw["any"]}] if raw.get("any") else []
    conditions += [
        (f"condition-{number}", conditions_of(test, known))
        for number, test in enumerate(tests, 1)
    ]
    written: Json = {"matchConstraints": constraints}
    if conditions:
        written["conditions"] = [
            {"name": name, "expression": _of_stored(text, resources)}
            for name, text in conditions
        ]
    written["schedule"] = spec.schedule
    if spec.deletion_propagation_policy:
        written["deletionPropagationPolicy"] = spec.deletion_propagation_policy
    return Deletion(_document(policy, written), resources)


def _document(policy: AnyCleanupPolicy, spec: Json) -> Json:
    is_namespaced = isinstance(policy, CleanupPolicy)
    own = policy.metadata
    metadata: Json = {"name": own.name}
    if is_namespaced and own.namespace:
        metadata["namespace"] = own.namespace
    metadata.update(
        {
            key: dict(value)
            for key, value in (("labels", own.labels), ("annotations", own.annotations))
            if value
        }
    )
    return {
        "apiVersion": _IN_CEL.cluster.api_versions[-1],
        "kind": _IN_CEL.names[is_namespaced],
        "metadata": metadata,
        "spec": spec,
    }


def _refuse(policy: AnyCleanupPolicy) -> None:
    spec = policy.spec
    conditions = spec.conditions
    blocks = [("match", spec.match)]
    blocks += [("exclude", spec.exclude)] if spec.exclude is not None else []
    for name, block in blocks:
        # KYVERNO: ``any`` has precedence, and operations are not tested.
        if block.any and block.all:
            raise NotRewritten(f"any and all in {name}")
        if any(one.resources.operations for one in (*block.any, *block.all)):
            raise NotRewritten(f"operations in {name}")
    if conditions is not None and not (conditions.any or conditions.all):
        raise NotRewritten("conditions without any or all")
    if policy.metadata.deletion_timestamp:
        raise NotRewritten("a policy that is being deleted")


def _stored_resources(filters: Sequence[ResourceDescription]) -> tuple[Resource, ...]:
    """Return the resources with the group and version in which they are listed."""
    if not all(one.kinds for one in filters):
        raise NotRewritten("match without kinds")
    return tuple(
        dict.fromkeys(
            _listed(resource, text)
            for one in filters
            for text in one.kinds
            for resource in resources_of_text(text)
        )
    )


def _listed(resource: Resource, text: str) -> Resource:
    group = resource.home if resource.group == "*" else resource.group
    version = resource.version
    if version == "*":
        # The first version of a group is the preferred one.
        built_in = _built_in(group, resource.plural)
        if built_in is None:
            raise NotRewritten(f"kind {text} without its version")
        version = built_in.version
    return resource._replace(group=group, version=version, home=group)


def _built_in(group: str, plural: str) -> ApiResource | None:
    return next(
        (one for one in BUILT_IN if (one.group, one.plural) == (group, plural)), None
    )


def _are_namespaced(resources: Sequence[Resource]) -> bool:
    found = [_built_in(one.group, one.plural) for one in resources]
    return all(one is not None and one.is_namespaced for one in found)


def _without_selectors(
    resource_filter: ResourceDescription, resources: Sequence[Resource]
) -> tuple[ResourceDescription, Json]:
    """Return an only filter without its selectors, and these as constraints."""
    constraints: Json = {}
    for name, selector in (
        ("objectSelector", resource_filter.selector),
        ("namespaceSelector", resource_filter.namespace_selector),
    ):
        if selector is not None:
            constraints[name] = _selector(selector, name)
    if "namespaceSelector" in constraints and not _are_namespaced(resources):
        # KYVERNO: it selects every Namespace here, and no other object without one;
        # K8S: constraints select all of these.
        raise NotRewritten("namespaceSelector for kinds without a namespace")
    left = msgspec.structs.replace(
        resource_filter, selector=None, namespace_selector=None
    )
    return left, constraints


def _without_names(
    resource_filter: ResourceDescription,
) -> tuple[list[ResourceDescription], Json]:
    """Return an only filter without its names, and these as part of a rule.

    An account that may list only these names needs them there.
    """
    exact = resource_filter.names or tuple(filter(None, (resource_filter.name,)))
    is_twofold = bool(resource_filter.names and resource_filter.name)
    if not exact or is_twofold or any(map(contains_wildcard, exact)):
        return [resource_filter], {}
    left = msgspec.structs.replace(resource_filter, names=(), name="")
    return [left], {"resourceNames": [*exact]}


def _selector(selector: LabelSelector, name: str) -> Json:
    raw = selector.raw()
    if any(
        contains_wildcard(part)
        for pair in selector.match_labels.items()
        for part in pair
    ):
        raise NotRewritten(f"wildcards in {name}")
    terms = selector.match_expressions
    if not raw or any(
        one.operator not in _OPERATORS
        or any(map(contains_wildcard, (one.key, *one.values)))
        for one in terms
    ):
        raise NotRewritten(name)
    return raw


def _refuse_ambiguous(
    policy: AnyCleanupPolicy,
    resources: Sequence[Resource],
    conditions: Sequence[tuple[str, str]],
) -> None:
    """Refuse what conditions cannot tell apart, or would count otherwise."""
    if not conditions:
        return
    if policy.metadata.annotations.get(BUDGET, "").strip().endswith("%"):
        raise NotRewritten("a deletion budget in per cent of what match selects")
    blocks = [policy.spec.match]
    blocks += [policy.spec.exclude] if policy.spec.exclude is not None else []
    named = [
        _listed(resource, text)
        for block in blocks
        for one in (*block.any, *block.all)
        for text in one.resources.kinds
        for resource in resources_of_text(text)
    ]
    own = {resource.kind for resource in resources}
    listed = {one[:4] for one in (*resources, *named) if one.kind in own}
    if len(listed) > len(own):
        raise NotRewritten("kinds of one name in several groups or versions")


def _names(resources: Sequence[Resource]) -> Names:
    """Return the names that queries use."""
    return {
        "target": root_of(resources, _OBJECT),
        "target.metadata.creationTimestamp": Moment(
            "object.metadata.creationTimestamp"
        ),
        "request.namespace": Code(_IN_NAMESPACE, "string", is_name=True),
    }


def _resource_rules(resources: Sequence[Resource]) -> list[Json]:
    rules: dict[tuple[str, str], list[str]] = {}
    for resource in resources:
        rules.setdefault((resource.group, resource.version), []).append(resource.plural)
    return [
        {"apiGroups": [group], "apiVersions": [version], "resources": plurals}
        for (group, version), plurals in rules.items()
    ]


def _of_stored(expression: str, resources: Sequence[Resource]) -> str:
    """Return an expression for objects that the API server has stored."""
    expression = expression.replace(_NAME, "object.metadata.name")
    # K8S: the objects of policies in CEL have no types, in which the word is reserved.
    namespace = "object.metadata.namespace"
    expression = expression.replace("object.metadata['namespace']", namespace)
    if any(one.kind == _NAMESPACE for one in resources):
        return expression
    expression = expression.replace(_BY_KIND, _IN_NAMESPACE)
    if _are_namespaced(resources):
        expression = expression.replace(_IN_NAMESPACE, namespace)
    return expression
