"""Explain why a ClusterPolicy cannot become a ValidatingAdmissionPolicy.

Room: compiler. Takes: a decoded policy and its exceptions. Gives: upstream's message,
"" if there is no reason. Next: controllers/admission_policies, compiler/type_check.py.
Source: docs/behaviour/controllers 13; Kyverno
pkg/admissionpolicy/kyvernopolicy_checker.go at v1.18.2.

Upstream's translation of some policies is lossy: it drops preconditions, selectors of
overrides, the selectors of an ``exclude`` without any/all, and all namespaces but the
last. The webhook stops enforcing a translated policy, so here such a policy is not
translated (``why_not_equal``).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule, Spec
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.match import (
    MatchFilters,
    MatchResources,
    ResourceDescription,
    ResourceFilter,
)
from kyverno_mp.policy.fields.validation import CEL, FailureActionOverride
from kyverno_mp.values.wildcard import contains_wildcard

SKIP: Final = "skip generating ValidatingAdmissionPolicy"
_USERS: Final = ": Roles / ClusterRoles / Subjects in `any/all` is not applicable."
_NAME: Final = ": wildcards in resource name is not applicable."
_NAMESPACE: Final = ": wildcards in namespace name is not applicable."
_EXCLUDED: Final = (
    "NamespaceSelector / ObjectSelector in the exclude block is not applicable."
)
_OVERRIDES: Final = "validationFailureActionOverrides"


def why_not(policy: AnyPolicy) -> str:
    """Return why the API server could not enforce the policy, by upstream's checks."""
    reason = next(_of_spec(policy.spec), "")
    return f"{SKIP}{reason}" if reason else ""


def why_not_asked(rule: Rule) -> str:
    """Return that the policy does not request a translation; call ``why_not`` first."""
    validate = rule.validate
    if validate is not None and validate.cel is not None and validate.cel.generate:
        return ""
    return f"{SKIP}: validate.cel.generate is not set to true."


def why_not_with(exceptions: Iterable[PolicyException]) -> str:
    """Return why the API server could not honour the exceptions."""
    reason = next(
        (loss for exception in exceptions for loss in _of_exception(exception)), ""
    )
    return f"{SKIP}{reason}" if reason else ""


def why_not_equal(policy: AnyPolicy) -> str:
    """Return what a translation would lose; call ``why_not`` first."""
    reason = next(_lost(policy.spec), "")
    return f"{SKIP}: {reason}" if reason else ""


def _of_spec(spec: Spec) -> Iterator[str]:
    if not spec.rules:
        yield ": no rules found."
        return
    if len(spec.rules) > 1:
        yield ": multiple rules are not applicable."
        return
    (rule,) = spec.rules
    validate = rule.validate
    if validate is None or validate.cel is None or validate.cel == CEL():
        yield " for non CEL rules."
        return
    yield from _of_overrides(spec.validation_failure_action_overrides)
    yield from _of_overrides(validate.failure_action_overrides)
    yield from _of_block(rule.match, is_match=True)
    if rule.exclude is not None:
        yield from _of_block(rule.exclude, is_match=False)


def _of_overrides(overrides: Sequence[FailureActionOverride]) -> Iterator[str]:
    if len(overrides) > 1:
        yield f": multiple {_OVERRIDES} are not applicable."
    elif overrides and overrides[0].namespaces:
        yield f": Namespaces in {_OVERRIDES} is not applicable."


def _of_block(block: MatchResources, *, is_match: bool) -> Iterator[str]:
    if block.roles or block.cluster_roles or block.subjects:
        yield _USERS
    yield from _of_description(block.resources, is_match=is_match)
    yield from _of_filters(block.any, is_match=is_match)
    if len(block.all) > 1:
        name = "match" if is_match else "exclude"
        yield f": multiple 'all' in the {name} block is not applicable."
    yield from _of_filters(block.all, is_match=is_match)


def _of_exception(exception: PolicyException) -> Iterator[str]:
    spec = exception.spec
    if any(len(exempted.rule_names) > 1 for exempted in spec.exceptions):
        yield ": multiple ruleNames in PolicyException is not applicable."
    if spec.conditions is not None:
        yield ": Conditions in PolicyException is not applicable."
    match: MatchFilters = spec.match
    yield from _of_filters(match.any, is_match=False)
    if len(match.all) > 1:
        yield (
            ": multiple 'all' in the PolicyException's match block is not applicable."
        )
    yield from _of_filters(match.all, is_match=False)


def _of_filters(filters: Sequence[ResourceFilter], *, is_match: bool) -> Iterator[str]:
    for resource_filter in filters:
        if (
            resource_filter.roles
            or resource_filter.cluster_roles
            or resource_filter.subjects
        ):
            yield _USERS
        yield from _of_description(resource_filter.resources, is_match=is_match)
    selects = any(_selects(resource_filter.resources) for resource_filter in filters)
    if selects and not is_match:
        yield f": {_EXCLUDED}"
    elif selects and len(filters) > 1:
        yield (
            ": NamespaceSelector / ObjectSelector across multiple resources in the"
            " match block are not applicable."
        )


def _selects(resource_description: ResourceDescription) -> bool:
    return (
        resource_description.selector is not None
        or resource_description.namespace_selector is not None
    )


def _of_description(
    resource_description: ResourceDescription, *, is_match: bool
) -> Iterator[str]:
    if not is_match and resource_description.kinds and resource_description.namespaces:
        yield ": excluding a resource within a namespace is not applicable."
    if resource_description.annotations:
        yield ": Annotations in resource description is not applicable."
    if any(
        map(contains_wildcard, (resource_description.name, *resource_description.names))
    ):
        yield _NAME
    if any(map(contains_wildcard, resource_description.namespaces)):
        yield _NAMESPACE


def _lost(spec: Spec) -> Iterator[str]:
    (rule,) = spec.rules
    assert rule.validate is not None
    if not spec.admission:
        yield "admission is set to false."
    if spec.validation_failure_action_overrides or (
        rule.validate.failure_action_overrides
    ):
        yield f"NamespaceSelector in {_OVERRIDES} is not applicable."
    if rule.preconditions:
        yield "preconditions are not applicable."
    if rule.exclude is not None and _selects(rule.exclude.resources):
        yield _EXCLUDED
    filters = [entry.resources for entry in (*rule.match.any, *rule.match.all)]
    if len({resources.namespaces for resources in filters}) > 1:
        yield (
            "Namespaces across multiple resources in the match block are not"
            " applicable."
        )
