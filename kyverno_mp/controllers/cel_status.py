"""Compute the status of a ValidatingPolicy, as upstream writes it.

Room: controllers. Takes: a policy, its status before, whether it is in force. Gives:
the status. Next: controllers/policy_status.py. May touch: nothing outside its
arguments.
Source: docs/behaviour/cel 1 (status), 7; Kyverno pkg/controllers/policystatus/vpol.go.

Upstream says WebhookConfigured when the webhook is registered; here every worker
evaluates the policy by then. The condition RBACPermissionsGranted is about scans, which
do not evaluate these policies here.
"""

from datetime import UTC, datetime
from typing import Final

from kyverno_mp.compiler.autogen_cel import copies_of
from kyverno_mp.policy.validating_policy import (
    AnyValidatingPolicy,
    ValidatingPolicySpec,
)
from kyverno_mp.values.jsonvalue import Json

WEBHOOK_CONFIGURED: Final = "WebhookConfigured"
_CONFIGURED: Final = "Webhook configured."
_NOT_CONFIGURED: Final = "Policy is not configured in the webhook."
_MESSAGE_CHARACTERS_MAX: Final = 1024
_TARGETS: Final = {
    "cronjobs": ("batch", "CronJob"),
    "daemonsets": ("apps", "DaemonSet"),
    "deployments": ("apps", "Deployment"),
    "jobs": ("batch", "Job"),
    "replicasets": ("apps", "ReplicaSet"),
    "statefulsets": ("apps", "StatefulSet"),
}


def cel_status_of(
    policy: AnyValidatingPolicy,
    before: Json,
    now: datetime,
    *,
    ready: bool,
    message: str,
) -> Json:
    """Return the whole status; conditions of other writers stay."""
    others: list[Json] = []
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    value = "True" if ready else "False"
    told = before.get("conditionStatus") or {}
    for one in told.get("conditions") or ():
        if one.get("type") != WEBHOOK_CONFIGURED:
            others.append(one)
        elif one.get("status") == value:
            since = one.get("lastTransitionTime") or since
    text = _CONFIGURED if ready else message[:_MESSAGE_CHARACTERS_MAX]
    condition = {
        "type": WEBHOOK_CONFIGURED,
        "status": value,
        "reason": "Succeeded" if ready else "Failed",
        "message": text or _NOT_CONFIGURED,
        "lastTransitionTime": since,
    }
    configs = {name: _config_of(spec) for name, spec in copies_of(policy.spec)}
    return {
        **before,
        "autogen": {"configs": configs} if configs else {},
        "conditionStatus": {
            **told,
            "conditions": [*others, condition],
            "ready": ready,
        },
        "generated": before.get("generated") is True,
    }


def _config_of(spec: ValidatingPolicySpec) -> Json:
    """Return one autogen configuration: its targets, and the policy's copy."""
    constraints = spec.match_constraints
    resources = sorted(
        resource
        for rule in (() if constraints is None else constraints.resource_rules)
        for resource in rule.resources
    )
    targets = [
        {"group": group, "version": "v1", "resource": resource, "kind": kind}
        for resource, (group, kind) in _TARGETS.items()
        if resource in resources
    ]
    return {"targets": targets, "spec": spec.raw()}
