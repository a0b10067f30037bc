"""Check the fields of each single rule.

Room: policy. Takes: Subject. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/engine 10.5; Kyverno api/kyverno/v1
(Validate); docs/behaviour/engine 10.6 (any/all, empty filters).
"""

from typing import Final

from kyverno_mp.policy.checks.conflict import covers_match
from kyverno_mp.policy.checks.rules.generation import check_generation
from kyverno_mp.policy.checks.rules.subject import (
    DocumentScope,
    Problems,
    Subject,
    forbidden,
    invalid,
    plain,
    required,
)
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.match import (
    MatchFilters,
    MatchResources,
    ResourceDescription,
    ResourceFilter,
)
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.policy.fields.validation import PodSecurityStandard
from kyverno_mp.values.kubernetes.selector import check_selector
from kyverno_mp.values.wildcard import contains_wildcard

_EMPTY = ResourceDescription()
_ACTIONS: Final = "mutate,validate,generate,verifyImages"
_CONTAINER_CONTROLS: Final = frozenset(
    {
        "Capabilities",
        "Privileged Containers",
        "Host Ports",
        "/proc Mount Type",
        "Privilege Escalation",
    }
)
_POD_CONTROLS: Final = frozenset(
    {"Host Namespaces", "HostPath Volumes", "Sysctls", "Volume Types"}
)
_RESTRICTED_ONLY: Final = frozenset(
    {
        "Volume Types",
        "Privilege Escalation",
        "Running as Non-root",
        "Running as Non-root user",
    }
)


def check_rules(subject: Subject) -> Problems:
    """Check every rule as written."""
    for index, rule in enumerate(subject.policy.spec.rules):
        path = f"spec.rules[{index}]"
        yield from _check_type(rule, path)
        if covers_match(rule):
            yield invalid(path, rule.name, rule, "Rule is matching an empty set")
        for name, block in (("match", rule.match), ("exclude", rule.exclude)):
            if block is not None:
                yield from check_block(block, f"{path}.{name}", rule.name, subject)
        yield from _check_targets(rule, path, subject)
        yield from _check_pod_security(rule, path)
        if rule.generate is not None and "generate" in rule.types():
            yield from check_generation(rule.generate, path, rule.name, subject)


def check_block(
    block: MatchResources | MatchFilters, path: str, rule: str, scope: DocumentScope
) -> Problems:
    """Check a match or exclude block."""
    if block.any and block.all:
        yield invalid(path, rule, block, "Can't specify any and all together")
    for mode, filters in (("any", block.any), ("all", block.all)):
        for index, entry in enumerate(filters):
            # KYVERNO: user info of ``all`` filters is reported under ``any`` (10.5).
            yield from _check_user(entry, f"{path}.any[{index}]", rule)
            filter_path = f"{path}.{mode}[{index}]"
            yield from _check_resources(entry.resources, filter_path, rule, scope)
    if isinstance(block, MatchResources):
        yield from _check_user(block, path, rule)
        yield from _check_resources(block.resources, path, rule, scope)


def _check_type(rule: Rule, path: str) -> Problems:
    types = rule.types()
    if not types:
        detail = (
            f"No operation defined in the rule '{rule.name}'.(supported operations: "
            f"{_ACTIONS})"
        )
        yield invalid(path, rule.name, rule, detail)
    elif len(types) > 1:
        detail = (
            f"Multiple operations defined in the rule '{rule.name}', only one "
            f"operation ({_ACTIONS}) is allowed per rule"
        )
        yield invalid(path, rule.name, rule, detail)
    if rule.image_extractors is not None and "verifyImages" not in types:
        detail = (
            f"Invalid rule spec for rule '{rule.name}', imageExtractors can only be "
            "defined for verifyImages rule"
        )
        yield invalid(f"{path}.imageExtractors", rule.name, rule, detail)


def _check_user(
    block: MatchResources | ResourceFilter, path: str, rule: str
) -> Problems:
    for index, subject in enumerate(block.subjects):
        subject_path = f"{path}.subjects[{index}]"
        if not subject.kind:
            yield required(f"{subject_path}.kind", rule, "")
        elif subject.kind not in ("User", "Group", "ServiceAccount"):
            detail = "kind must be 'User', 'Group', or 'ServiceAccount'"
            yield invalid(f"{subject_path}.kind", rule, subject.kind, detail)
        if not subject.name:
            yield required(f"{subject_path}.name", rule, "")
        if subject.kind == "ServiceAccount" and not subject.namespace:
            detail = "namespace is required when Kind is ServiceAccount"
            yield required(f"{subject_path}.namespace", rule, detail)
    for index, role in enumerate(block.roles):
        if role.count(":") != 1:
            detail = "Role is expected to be in namespace:name format"
            yield invalid(f"{path}.roles[{index}]", rule, role, detail)


def _check_resources(
    resources: ResourceDescription, path: str, rule: str, scope: DocumentScope
) -> Problems:
    if resources.name and resources.names:
        detail = "Both name and names can not be specified together"
        yield invalid(path, rule, resources, detail)
    yield from _check_selector(resources.selector, f"{path}.selector", rule)
    if not scope.is_namespaced:
        return
    if resources.namespaces:
        detail = "Filtering namespaces not allowed in namespaced policies"
        yield forbidden(f"{path}.namespaces", rule, detail)
    for index, kind in enumerate(resources.kinds):
        if kind in (scope.cluster_kinds or ()):
            detail = f"Cluster wide resource '{kind}' not allowed in namespaced policy"
            yield forbidden(f"{path}.kinds[{index}]", rule, detail)


def _check_selector(selector: LabelSelector | None, path: str, rule: str) -> Problems:
    if selector is None or _has_wildcards(selector):
        return
    terms = [
        (match_expression.key, match_expression.operator, match_expression.values)
        for match_expression in selector.match_expressions
    ]
    error = check_selector(list(selector.match_labels.items()), terms)
    if error:
        yield invalid(path, rule, selector, error)
    elif not selector.match_labels and not terms:
        detail = "The requirements are not specified in selector"
        yield invalid(path, rule, selector, detail)


def _has_wildcards(selector: LabelSelector) -> bool:
    return any(
        contains_wildcard(key) or contains_wildcard(value)
        for key, value in selector.match_labels.items()
    )


def _check_targets(rule: Rule, path: str, subject: Subject) -> Problems:
    if rule.mutate is None or not subject.is_namespaced:
        return
    policy_namespace = subject.policy.metadata.namespace
    for index, target in enumerate(rule.mutate.targets or ()):
        if target.namespace and target.namespace != policy_namespace:
            detail = (
                "This field can be ignored or should have value of the namespace where "
                "the policy is being created"
            )
            namespace_path = f"{path}.targets[{index}].namespace"
            yield invalid(namespace_path, rule.name, target.namespace, detail)


def _check_pod_security(rule: Rule, path: str) -> Problems:
    body = rule.validate.pod_security if rule.validate is not None else None
    if body is None:
        return
    for index, entry in enumerate(body.exclude):
        exclude_path = f"{path}.podSecurity.exclude[{index}]"
        yield from check_standard(entry, exclude_path, rule.name)
        if body.level == "baseline" and entry.control_name in _RESTRICTED_ONLY:
            detail = "Invalid control name defined at the given level"
            name = entry.control_name
            yield invalid(f"{exclude_path}.controlName", rule.name, name, detail)


def check_standard(entry: PodSecurityStandard, path: str, rule: str) -> Problems:
    """Check one podSecurity exclusion, of a rule or of an exception."""
    name_path, name = f"{path}.controlName", entry.control_name
    if name in _CONTAINER_CONTROLS and not entry.images:
        detail = "exclude.images must be specified for the container level control"
        yield invalid(name_path, rule, name, detail)
    elif name in _POD_CONTROLS and entry.images:
        detail = "exclude.images must not be specified for the pod level control"
        yield invalid(name_path, rule, name, detail)
    if entry.restricted_field and not entry.values:
        yield forbidden(f"{path}.values", rule, "values is required")
    if entry.values and not entry.restricted_field:
        yield forbidden(f"{path}.restrictedField", rule, "restrictedField is required")


def check_blocks(rule: Rule, index: int) -> Problems:
    """Check that any, all and the inline form are not mixed."""
    path = f"spec.rules[{index}]"
    exclude, match = rule.exclude, rule.match
    if exclude is not None:
        if (exclude.any or exclude.all) and exclude.resources != _EMPTY:
            message = "can't specify any/all together with exclude resources"
            yield plain(
                f"{path}.exclude", rule.name, f"path: {path}.exclude.: {message}"
            )
        if exclude.any and exclude.all:
            # KYVERNO: the path contains match instead of exclude (10.6).
            message = "can't specify any and all together"
            yield plain(f"{path}.exclude", rule.name, f"path: {path}.match.: {message}")
    if (match.any or match.all) and match.resources != _EMPTY:
        message = "can't specify any/all together with match resources"
        yield plain(f"{path}.match", rule.name, f"path: {path}.match.: {message}")
    described = [entry.resources for entry in match.any or match.all]
    for resources in described or [match.resources]:
        if resources == _EMPTY:
            message = "match resources not specified"
            reason = f"path: {path}.match.resources.: {message}"
            yield plain(f"{path}.match.resources", rule.name, reason)
