"""Compute the status of a policy in CEL, as upstream writes it.

Room: controllers. Takes: a policy, its previous status, whether it is in force. Gives:
the status. Next: controllers/policy_status.py.
Source: docs/behaviour/cel 1 (status), 7; Kyverno
pkg/controllers/policystatus/{vpol,mpol}.go.

Upstream sets WebhookConfigured when the webhook is registered; here, it also means that
every worker evaluates the policy. RBACPermissionsGranted tells whether scans can read
the objects. As upstream, a policy is not Ready if scans cannot read its objects.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.compiler.cel_kinds.validating_policy import is_on
from kyverno_mp.controllers.unproved_status import without_outdated
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.values.jsonvalue import Json

WEBHOOK_CONFIGURED: Final = "WebhookConfigured"
RBAC_GRANTED: Final = "RBACPermissionsGranted"
_OURS: Final = frozenset({WEBHOOK_CONFIGURED, RBAC_GRANTED})
_REPORTED: Final = "Policy is ready for reporting."
_NOT_REPORTED: Final = "Policy is not ready for reporting, missing permissions: "
_CONFIGURED: Final = "Webhook configured."
_NOT_CONFIGURED: Final = "Policy is not configured in the webhook."
_MESSAGE_CHARACTERS_MAX: Final = 1024
_TARGETS: Final = {
    "daemonsets": ("apps", "DaemonSet"),
    "deployments": ("apps", "Deployment"),
    "replicasets": ("apps", "ReplicaSet"),
    "statefulsets": ("apps", "StatefulSet"),
    "cronjobs": ("batch", "CronJob"),
    "jobs": ("batch", "Job"),
}


def cel_status_of(
    policy: AnyServedPolicy,
    before: Json,
    now: datetime,
    *,
    ready: bool,
    message: str,
    missing: Sequence[str] = (),
) -> Json:
    """Return the whole status; keep the conditions of other writers.

    ``missing``: the permissions that scans lack.
    """
    stored = before.get("conditionStatus") or {}
    given = stored.get("conditions") or []
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = _CONFIGURED if ready else message[:_MESSAGE_CHARACTERS_MAX]
    ours = [
        _condition(
            RBAC_GRANTED, _permissions(missing), given, since, holds=not missing
        ),
    ]
    # KYVERNO: a policy for scans alone has no webhook to configure.
    if not (ready and _is_for_scans(policy)):
        text = text or _NOT_CONFIGURED
        ours.insert(0, _condition(WEBHOOK_CONFIGURED, text, given, since, holds=ready))
    others = [
        one
        for one in without_outdated(given, policy.metadata.generation)
        if one.get("type") not in _OURS
    ]
    cel_status: Json = {
        **before,
        "conditionStatus": {
            **stored,
            "conditions": [*others, *ours],
            "ready": ready and not missing,
        },
    }
    row = row_of(policy.kind)
    if row.copies is None:
        # The status of such a kind has no other fields.
        return cel_status
    configs = {name: _config_of(spec) for name, spec in row.copies_of(policy)}
    return {
        **cel_status,
        "autogen": {"configs": configs} if configs else {},
        "generated": before.get("generated") is True,
    }


def _is_for_scans(policy: AnyServedPolicy) -> bool:
    evaluation: Any = policy.spec.evaluation
    # A kind that no scan evaluates has no such switch.
    is_scanned = hasattr(evaluation, "background") and is_on(evaluation.background)
    return is_scanned and not is_on(evaluation.admission)


def _permissions(missing: Sequence[str]) -> str:
    text = f"{_NOT_REPORTED}{'; '.join(missing)}" if missing else _REPORTED
    if len(text) < _MESSAGE_CHARACTERS_MAX:
        return f"{text}." if missing else text
    return text[:_MESSAGE_CHARACTERS_MAX]


def _condition(
    name: str, text: str, given: Iterable[Json], since: str, *, holds: bool
) -> Json:
    """Return a condition; its transition time is ``since`` if its value changed."""
    value = "True" if holds else "False"
    for one in given:
        if (one.get("type"), one.get("status")) == (name, value):
            since = one.get("lastTransitionTime") or since
    return {
        "type": name,
        "status": value,
        "reason": "Succeeded" if holds else "Failed",
        "message": text,
        "lastTransitionTime": since,
    }


def _config_of(spec: Any) -> Json:
    """Return one autogen configuration: its targets, and the policy's copy."""
    constraints = spec.match_constraints
    targets = [
        {
            "group": group,
            "version": version,
            "resource": resource,
            "kind": _kind_of(resource, group),
        }
        for rule in (() if constraints is None else constraints.resource_rules)
        for group in rule.api_groups
        for version in rule.api_versions
        for resource in rule.resources
    ]
    return {"targets": targets, "spec": spec.raw()}


def _kind_of(resource: str, group: str) -> str:
    """Return the kind of a controller. KYVERNO: another one's is guessed.

    Nothing but this field depends on the guess.
    """
    known = _TARGETS.get(resource)
    if known is not None and known[0] == group:
        return known[1]
    return resource.removesuffix("s").capitalize()
