"""Check ``metadata`` and the fields of ``spec`` outside its rules.

Room: policy. Takes: Subject. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/engine 10.1, 10.4, 10.6 (overrides,
admission).
"""

from typing import Final

from kyverno_mp.policy.checks.rules.subject import (
    Problems,
    Subject,
    forbidden,
    invalid,
    plain,
)
from kyverno_mp.policy.documents.cluster_policy import AUTOGEN_ANNOTATION, Spec
from kyverno_mp.policy.fields.validation import FailureActionOverride
from kyverno_mp.policy.gradual import rollout_problems
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.wildcard import contains_wildcard, matches

NAME_BYTES_MAX: Final = 63
TIMEOUT_S_MAX: Final = 30

_NO_NAMESPACE: Final = "A clusterpolicy should not have the namespace defined"


def check_namespace(subject: Subject) -> Problems:
    """Check that a ClusterPolicy has no namespace."""
    if not subject.is_namespaced and subject.policy.metadata.namespace:
        yield plain("metadata.namespace", "", _NO_NAMESPACE)


def check_spec(subject: Subject) -> Problems:
    """Check metadata, deprecated pairs of fields, timeouts, rule names."""
    yield from _check_metadata(subject)
    spec = subject.policy.spec
    yield from _check_deprecated(spec)
    yield from _check_mutate_targets(spec)
    yield from _check_timeouts(spec)
    yield from _check_rule_names(spec)


def check_spec_overrides(subject: Subject) -> Problems:
    """Check that only ClusterPolicies have overrides; runs after checks of rules."""
    overrides = subject.policy.spec.validation_failure_action_overrides
    if subject.is_namespaced and overrides:
        yield forbidden(
            "spec.validationFailureActionOverrides",
            "",
            "Use of validationFailureActionOverrides is supported only with "
            "ClusterPolicy",
        )


def check_override_namespaces(subject: Subject) -> Problems:
    """Check that no namespace has both Enforce and Audit (ClusterPolicy only)."""
    if subject.is_namespaced:
        return
    spec = subject.policy.spec
    for index, rule in enumerate(spec.rules):
        if rule.validate is not None:
            overrides = rule.validate.failure_action_overrides
            path = f"spec.rules[{index}].validate.validationFailureActionOverrides"
            yield from _check_overrides(overrides, path, rule.name)
    path = "spec.validationFailureActionOverrides"
    yield from _check_overrides(spec.validation_failure_action_overrides, path, "")


def check_processing(subject: Subject) -> Problems:
    """Require admission processing, or background with only validate rules."""
    spec = subject.policy.spec
    if spec.admission:
        return
    if not spec.background:
        message = "disabling both admission and background processing is not allowed"
        yield plain("spec.admission", "", message)
    for rule in spec.rules:
        if set(rule.types()) - {"validate"}:
            message = (
                "disabling admission processing is only allowed with validation "
                "policies"
            )
            yield plain("spec.admission", "", message)
            return


def check_has_rules(subject: Subject) -> Problems:
    """Reject a policy without rules, which would have no effect."""
    if not subject.policy.spec.rules:
        reason = "a policy must have at least one rule"
        yield Problem("policy.no_rules", "spec.rules", "", reason)


def _check_metadata(subject: Subject) -> Problems:
    meta = subject.policy.metadata
    if meta.annotations.get(AUTOGEN_ANNOTATION) == "all":
        yield forbidden(
            "metadata.annotations",
            "",
            "Autogen annotation does not support 'all' anymore, remove the annotation "
            "or set it to a valid value",
        )
    if len(meta.name.encode()) > NAME_BYTES_MAX:
        reason = f"may not be more than {NAME_BYTES_MAX} bytes"
        message = f"name: Too long: {reason}"
        yield Problem("policy.too_long", "name", "", reason, message)
    can_deny = any(
        rule.validate is not None or rule.verify_images
        for rule in subject.policy.spec.rules
    )
    yield from rollout_problems(meta.annotations, can_deny=can_deny)


def _check_deprecated(spec: Spec) -> Problems:
    hooks = spec.webhook_configuration
    new = "remove the deprecated field and use "
    if hooks is not None:
        timeouts = (spec.webhook_timeout_seconds, hooks.timeout_seconds)
        if None not in timeouts:
            detail = f"{new}spec.webhookConfiguration.timeoutSeconds instead"
            yield forbidden("spec.webhookTimeoutSeconds", "", detail)
        if spec.failure_policy is not None and hooks.failure_policy is not None:
            detail = f"{new}spec.webhookConfiguration.failurePolicy instead"
            yield forbidden("spec.failurePolicy", "", detail)
    if spec.generate_existing_on_policy_update is not None:
        detail = f"{new}spec.generate[*].generateExisting instead"
        yield forbidden("spec.generateExistingOnPolicyUpdate", "", detail)


def _check_mutate_targets(spec: Spec) -> Problems:
    for index, rule in enumerate(spec.rules):
        mutate = rule.mutate
        if mutate is None or "mutate" not in rule.types():
            continue
        flags = (
            spec.mutate_existing_on_policy_update
            or mutate.mutate_existing_on_policy_update
        )
        if flags and not mutate.targets:
            detail = (
                f"rules[{index}].mutate.targets has to be specified when "
                "mutateExistingOnPolicyUpdate is set"
            )
            yield forbidden("spec.mutateExistingOnPolicyUpdate", rule.name, detail)


def _check_timeouts(spec: Spec) -> Problems:
    hooks = spec.webhook_configuration
    timeouts = (
        ("spec.webhookTimeoutSeconds", spec.webhook_timeout_seconds),
        (
            "spec.webhookConfiguration.timeoutSeconds",
            hooks.timeout_seconds if hooks else None,
        ),
    )
    for path, seconds in timeouts:
        if seconds is not None and not 1 <= seconds <= TIMEOUT_S_MAX:
            detail = f"the timeout value must be between 1 and {TIMEOUT_S_MAX} seconds"
            yield invalid(path, "", seconds, detail)


def _check_rule_names(spec: Spec) -> Problems:
    names: set[str] = set()
    for index, rule in enumerate(spec.rules):
        if rule.name in names:
            path = f"spec.rules[{index}].name"
            yield invalid(path, rule.name, rule, f"Duplicate rule name: '{rule.name}'")
        names.add(rule.name)


def _check_overrides(
    overrides: tuple[FailureActionOverride, ...], path: str, rule: str
) -> Problems:
    names: dict[str, set[str]] = {"enforce": set(), "audit": set()}
    patterns: dict[str, set[str]] = {"enforce": set(), "audit": set()}
    for index, override in enumerate(overrides):
        if override.action is None:
            yield plain(path, rule, "invalid action")
            return
        action = override.action.lower()
        opposite = "audit" if action == "enforce" else "enforce"
        namespaces_path = f"{path}[{index}].namespaces"
        wild = {name for name in override.namespaces if contains_wildcard(name)}
        exact = set(override.namespaces) - wild
        both = sorted(names[opposite] & exact)
        if both:
            message = (
                f"conflicting namespaces found in path: {namespaces_path}:"
                f" {', '.join(both)}"
            )
            yield plain(namespaces_path, rule, message)
            return
        patterns[action] |= wild
        names[action] |= exact
        clash = _clash(names, patterns)
        if clash:
            yield plain(namespaces_path, rule, f"path: {namespaces_path}: {clash}")
            return


def _clash(names: dict[str, set[str]], patterns: dict[str, set[str]]) -> str:
    tries = (
        (patterns["audit"], names["enforce"], "matches with namespace"),
        (patterns["enforce"], names["audit"], "matches with namespace"),
        (patterns["audit"], patterns["enforce"], "conflicts with the pattern"),
        (patterns["enforce"], patterns["audit"], "conflicts with the pattern"),
    )
    for wild, plain_names, how in tries:
        for plain_name in sorted(plain_names):
            for pattern in sorted(wild):
                if matches(pattern, plain_name):
                    return f"wildcard pattern '{pattern}' {how} '{plain_name}'"
    return ""
