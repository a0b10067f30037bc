"""Decide whether matchConstraints or matchResources match a request.

Room: program. Takes: ConstraintsIR; a Request whose review_request names the resource.
Gives: ``matches``. Next: validate.py, mutate.py.
Source: docs/behaviour/cel 3; k8s apiserver, webhook/predicates/rules/rules.go.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from kyverno_mp.ir.admission_policy import ConstraintsIR, ResourceRuleIR
from kyverno_mp.ir.match import SelectorIR
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import EMPTY_OBJECT, Request, RequestKind
from kyverno_mp.values.kubernetes.selector import LabelTest, compile_selector, labels_of

_NAMESPACES = ("", "v1", "namespaces")
_SELECTORS_KEPT_MAX: Final = 64


def matches(constraints: ConstraintsIR | None, request: Request) -> bool:
    """Return whether the constraints match; None matches every request."""
    if constraints is None:
        return True
    group_resource = resource_of(request)
    selector = constraints.namespace_selector
    if selector is not None and has_namespace(request):
        labels = _namespace_labels(request, group_resource[2])
        if not _selects(selector, labels):
            return False
    selector = constraints.object_selector
    if selector is not None and not any(
        _selects(selector, labels_of(metadata_of(resource).get("labels")))
        for resource in (request.object, request.old_object)
        if resource or resource is EMPTY_OBJECT
    ):
        return False
    if _listed(constraints.excluded, request, group_resource):
        return False
    return not constraints.rules or _listed(constraints.rules, request, group_resource)


def has_namespace(request: Request) -> bool:
    """Return whether selectors of namespaces apply: also to a Namespace."""
    return bool(request.namespace) or resource_of(request)[2] == "namespaces"


def _selects(selector: SelectorIR, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector; an invalid selector never matches."""
    return not selector.error and _compiled(selector)(labels)


@lru_cache(maxsize=_SELECTORS_KEPT_MAX)
def _compiled(selector: SelectorIR) -> LabelTest:
    # PERF: linking a selector of 3 MiB takes almost a second, so the result is cached.
    terms = [(term.key, term.operator, term.values) for term in selector.terms]
    return compile_selector(selector.labels, terms)


def resource_of(request: Request) -> tuple[str, str, str]:
    """Return the group, version and plural name of the request's resource."""
    resource = (request.review_request or {}).get("resource") or {}
    return (
        resource.get("group", ""),
        resource.get("version", ""),
        resource.get("resource", ""),
    )


def kind_of(request: Request) -> RequestKind:
    """Return the RequestKind of a request."""
    group, version, resource = resource_of(request)
    return RequestKind(
        group,
        version,
        resource,
        request.subresource,
        request.operation,
        bool(request.namespace),
    )


def _namespace_labels(request: Request, resource: str) -> Mapping[str, str]:
    """Return the namespace's labels; for a new Namespace, the labels of the object."""
    if resource == "namespaces" and request.operation in ("CREATE", "UPDATE"):
        return labels_of(metadata_of(request.object).get("labels"))
    return request.namespace_labels


def _listed(
    rules: Sequence[ResourceRuleIR],
    request: Request,
    group_resource: tuple[str, str, str],
) -> bool:
    return any(
        _rule_matches(rule, request, group_resource) and _is_named(rule, request)
        for rule in rules
    )


def _rule_matches(
    rule: ResourceRuleIR, request: Request, group_resource: tuple[str, str, str]
) -> bool:
    group, version, resource = group_resource
    return (
        _has(rule.operations, request.operation)
        and _has(rule.groups, group)
        and _has(rule.versions, version)
        and _scope_matches(rule.scope, request, group_resource)
        and any(
            _resource_matches(entry, resource, request.subresource)
            for entry in rule.resources
        )
    )


def _has(listed: Sequence[str], value: str) -> bool:
    return "*" in listed or value in listed


def _scope_matches(
    scope: str, request: Request, group_resource: tuple[str, str, str]
) -> bool:
    if scope == "*":
        return True
    # KYVERNO: offline every object is in a namespace (docs/behaviour/cli 22.1).
    is_namespaced = group_resource != _NAMESPACES and bool(request.namespace)
    return is_namespaced == (scope == "Namespaced")


def _resource_matches(entry: str, resource: str, subresource: str) -> bool:
    pattern, _, wanted_subresource = entry.partition("/")
    return pattern in ("*", resource) and wanted_subresource in (
        ("*", subresource) if wanted_subresource else (subresource,)
    )


def _is_named(rule: ResourceRuleIR, request: Request) -> bool:
    """Return whether the name is listed; a generateName is compared as a prefix."""
    if not rule.names:
        return True
    metadata = metadata_of(request.object or request.old_object)
    # The object of a subresource request can lack a name.
    name = metadata.get("name") or (request.subresource and request.name)
    if name:
        return name in rule.names
    generated = metadata.get("generateName")
    return type(generated) is str and generated.startswith(rule.names)
