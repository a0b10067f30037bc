"""Collect upstream's warnings for a new policy.

Room: policy. Takes: Subject. Gives: warning messages in upstream's order. Next:
policy/check.py.
Source: docs/behaviour/engine 10.1 and the last paragraph of 10.6.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from kyverno_mp.policy.checks.rules.conditions import deprecated_operators
from kyverno_mp.policy.checks.rules.subject import Subject
from kyverno_mp.policy.documents.cluster_policy import AUTOGEN_ANNOTATION, Rule
from kyverno_mp.policy.fields.validation import FailureActionOverride, Validation
from kyverno_mp.policy.kinds import bare_kind

ACTION: Final = (
    "Validation failure actions enforce/audit are deprecated, use Enforce/Audit "
    "instead."
)
_PATCHED_POD: Final = (
    "Pods managed by workload controllers should not be directly mutated using "
    "policies. Use the autogen feature or write policies that match Pod controllers."
)
_EXCLUDED: Final = (
    "Policies that match Pods apply to all Pods including those created and managed by "
    "controllers excluded from autogen. Use preconditions to exclude the Pods managed "
    "by controllers which are excluded from autogen. Refer to "
    "https://kyverno.io/docs/policy-types/cluster-policy/autogen/ for details."
)
_USUAL: Final = ["cronjob", "daemonset", "deployment", "job", "statefulset"]
_OLD_ACTIONS: Final = ("enforce", "audit")


def action_warnings(subject: Subject) -> Iterator[str]:
    """Warn about lower-case failure actions."""
    spec = subject.policy.spec
    overrides = spec.validation_failure_action_overrides
    yield from _action(spec.validation_failure_action, overrides)
    for rule in spec.rules:
        if rule.validate is not None and rule.validate.failure_action is not None:
            overrides = rule.validate.failure_action_overrides
            yield from _action(rule.validate.failure_action, overrides)


def rule_warnings(rule: Rule, subject: Subject) -> Iterator[str]:
    """Warn about rules that probably do not do what their author intends."""
    mutate = rule.mutate
    if (
        mutate is not None
        and mutate.patches_json6902
        and "Pod" in rule.match.resources.kinds
    ):
        yield _PATCHED_POD
    if {bare_kind(kind) for kind in rule.match.kinds()} == {"Pod"}:
        chosen = subject.policy.metadata.annotations.get(AUTOGEN_ANNOTATION)
        if chosen not in (None, "none") and sorted(chosen.lower().split(",")) != _USUAL:
            yield _EXCLUDED
    yield from _subresource_warnings(rule)
    for image in rule.verify_images:
        for attestation in image.attestations:
            old = attestation.predicate_type
            if old:
                yield (
                    f"predicateType has been deprecated use 'type: {old}' instead of "
                    f"'predicateType: {old}'"
                )
    yield from deprecated_operators(rule)


def _action(action: str, overrides: Iterable[FailureActionOverride]) -> Iterator[str]:
    if action in _OLD_ACTIONS or any(
        override.action in _OLD_ACTIONS for override in overrides
    ):
        yield ACTION


def _subresource_warnings(rule: Rule) -> Iterator[str]:
    kinds = [*rule.match.kinds()]
    if rule.exclude is not None:
        kinds += rule.exclude.kinds()
    body = rule.validate or rule.mutate
    if body is None:
        return
    if isinstance(body, Validation) and body.deny is not None:
        body = msgspec.structs.replace(body, deny=None)
    if rule.mutate is not None:
        kinds += [target.kind for target in rule.mutate.targets or ()]
    encoded = msgspec.json.encode(body).decode()
    lowered = " ".join(kinds).lower()
    if "replicas" in encoded and "scale" not in lowered:
        yield (
            "You are matching on replicas but not including the scale subresource in "
            "the policy."
        )
    if (".status" in encoded or '"status":' in encoded) and "status" not in lowered:
        yield (
            "You are matching on status but not including the status subresource in "
            "the policy."
        )
