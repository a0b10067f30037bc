"""Build the configurations for Kyverno's own kinds, leases and TTL labels.

Room: controllers. Takes: WebhookOptions. Gives: configurations.
Next: controllers/webhook_config/reconcile.py.
Source: docs/behaviour/controllers 3.1 (table and static rules), 3.6 (leases).
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.controllers.webhook_config.options import (
    MUTATING,
    VALIDATING,
    WebhookOptions,
    client_config,
    configuration,
)
from kyverno_mp.controllers.webhook_config.rules import CREATE_UPDATE
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_GROUP,
    CEL_POLICY_EXCEPTION,
    CEL_POLICY_KINDS,
    CLEANUP_POLICY,
    KYVERNO_GROUP,
    POLICY_EXCEPTION,
    WITH_RULES,
)


def admission_configurations(options: WebhookOptions) -> list[Json]:
    """Return the admission controller's configurations except the resource webhooks."""
    return [
        _own(
            VALIDATING,
            "kyverno-policy-validating-webhook-cfg",
            _review_policies,
            options,
        ),
        _own(
            MUTATING, "kyverno-policy-mutating-webhook-cfg", _mutate_policies, options
        ),
        _own(MUTATING, "kyverno-verify-mutating-webhook-cfg", _watch_lease, options),
        _generic(
            "kyverno-exception-validating-webhook-cfg",
            "/exceptionvalidate",
            _rule(KYVERNO_GROUP, ("v2alpha1", "v2beta1"), (POLICY_EXCEPTION.plural,)),
            options,
        ),
        _generic(
            "kyverno-cel-exception-validating-webhook-cfg",
            "/celexception/validate",
            _rule(CEL_GROUP, ("v1alpha1",), (CEL_POLICY_EXCEPTION.plural,)),
            options,
        ),
        _generic(
            "kyverno-global-context-validating-webhook-cfg",
            "/globalcontextvalidate",
            _rule(KYVERNO_GROUP, ("v2alpha1",), ("globalcontextentries",)),
            options,
        ),
    ]


def cleanup_configurations(options: WebhookOptions) -> list[Json]:
    """Return the clean-up controller's configurations; ``options`` name its service.

    Upstream serves the path ``/validate`` from a separate server. Here, one server
    handles all paths, so this path needs its own name.
    """
    ttl = _generic(
        "kyverno-ttl-validating-webhook-cfg",
        "/verifyttl",
        _rule("*", ("*",), ("*",)),
        options,
        failure_policy="Ignore",
    )
    ttl["webhooks"][0]["objectSelector"] = {
        "matchExpressions": [{"key": "cleanup.kyverno.io/ttl", "operator": "Exists"}]
    }
    return [
        _generic(
            "kyverno-cleanup-validating-webhook-cfg",
            "/cleanuppolicyvalidate",
            _rule(
                KYVERNO_GROUP,
                ("v2beta1",),
                [f"{one.plural}/*" for one in reversed(CLEANUP_POLICY.stored)],
            ),
            options,
        ),
        ttl,
    ]


def _rule(
    group: str,
    versions: Sequence[str],
    resources: Sequence[str],
    operations: Sequence[str] = CREATE_UPDATE,
) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": list(versions),
        "operations": list(operations),
        "resources": list(resources),
        "scope": "*",
    }


_OF_POLICIES: Final = _rule(
    KYVERNO_GROUP,
    WITH_RULES.cluster.versions,
    [one.plural for one in WITH_RULES.stored],
)


def _own(
    kind: str,
    name: str,
    webhook: Callable[[WebhookOptions], Json],
    options: WebhookOptions,
) -> Json:
    return configuration(kind, name, [webhook(options)], options)


def _review_policies(options: WebhookOptions) -> Json:
    # Those of other kinds than ValidatingPolicy: since 1.19 (docs/behaviour/v1.19 5).
    # KYVERNO: upstream registers no check of NamespacedDeletingPolicies.
    rules = [
        _rule(CEL_GROUP, stored.versions, (stored.plural,))
        for row in CEL_POLICY_KINDS
        for stored in row.stored
    ]
    return {
        "name": "validate-policy.kyverno.svc",
        "clientConfig": client_config(options, "/policyvalidate"),
        "rules": [_OF_POLICIES, *rules],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": options.timeout_s,
        "admissionReviewVersions": ["v1"],
    }


def _mutate_policies(options: WebhookOptions) -> Json:
    # Upstream's webhook has no effect; ours records the author of namespaced policies.
    others = [
        _rule(KYVERNO_GROUP, ("v2beta1",), (CLEANUP_POLICY.namespaced.plural,)),
        *(
            _rule(CEL_GROUP, row.namespaced.versions, (row.namespaced.plural,))
            for row in CEL_POLICY_KINDS
        ),
    ]
    return {
        "name": "mutate-policy.kyverno.svc",
        "clientConfig": client_config(options, "/policymutate"),
        "rules": [_OF_POLICIES, *others],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": options.timeout_s,
        "reinvocationPolicy": "IfNeeded",
        "admissionReviewVersions": ["v1"],
    }


def _watch_lease(options: WebhookOptions) -> Json:
    return {
        "name": "monitor-webhooks.kyverno.svc",
        "clientConfig": client_config(options, "/verifymutate"),
        "rules": [_rule("coordination.k8s.io", ("v1",), ("leases",), ("UPDATE",))],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "objectSelector": {"matchLabels": {"app.kubernetes.io/name": "kyverno"}},
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": options.timeout_s,
        "reinvocationPolicy": "IfNeeded",
        "admissionReviewVersions": ["v1"],
    }


def _generic(
    name: str,
    path: str,
    rule: Json,
    options: WebhookOptions,
    failure_policy: str = "Fail",
) -> Json:
    webhook: Json = {
        "name": f"{options.service}.{options.namespace}.svc",
        "clientConfig": client_config(options, path),
        "rules": [rule],
        "failurePolicy": failure_policy,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    if options.match_conditions:
        webhook["matchConditions"] = list(options.match_conditions)
    return configuration(VALIDATING, name, [webhook], options)
