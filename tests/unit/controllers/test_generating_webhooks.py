"""The webhooks and the status of GeneratingPolicies, as upstream writes them.

A failure means: the API server does not call us for triggers, or a request is denied
because its generation could not be recorded.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.webhook_config.cel import cel_webhooks
from kyverno_mp.controllers.webhook_config.cel_documents import DecodedCelPolicies
from kyverno_mp.controllers.webhook_config.options import WebhookOptions

NAMESPACES = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["namespaces"],
}


def policy(name: str = "p", namespace: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": "NamespacedGeneratingPolicy" if namespace else "GeneratingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": [NAMESPACES]},
            "generate": [{"expression": "true"}],
            **spec,
        },
    }


def webhooks(*raws: dict[str, Any], **options: Any) -> dict[str, Any]:
    found = DecodedCelPolicies().decode(json.dumps(raw).encode() for raw in raws)
    given = WebhookOptions(ca_bundle=b"ca", **options)
    return {one["name"]: one for one in cel_webhooks(found, given)}


def test_policies_share_a_webhook_for_every_operation() -> None:
    """Updates and deletions affect objects that a creation has generated."""
    ((name, found),) = webhooks(policy("b"), policy("a")).items()
    assert name == "gpol.validate.kyverno.svc-ignore"
    assert found["clientConfig"]["service"]["path"] == "/gpol/a/b"
    assert found["failurePolicy"] == "Ignore"
    assert found["sideEffects"] == "NoneOnDryRun"
    (rule,) = found["rules"]
    assert rule["operations"] == ["CONNECT", "CREATE", "DELETE", "UPDATE"]
    assert rule["resources"] == ["namespaces"]


@pytest.mark.parametrize(
    "spec",
    [
        {"matchConditions": [{"name": "c", "expression": "object != null"}]},
        {"webhookConfiguration": {"timeoutSeconds": 3}},
    ],
)
def test_some_policies_have_a_separate_webhook(spec: dict[str, Any]) -> None:
    found = webhooks(policy("own", **spec), policy("shared"))
    own = found["gpol.validate.kyverno.svc-ignore-finegrained-own"]
    assert own["clientConfig"]["service"]["path"] == "/gpol/own"
    assert own.get("matchConditions") == spec.get("matchConditions")
    shared = found["gpol.validate.kyverno.svc-ignore"]
    assert shared["clientConfig"]["service"]["path"] == "/gpol/shared"


def test_namespaced_policy_gets_only_objects_of_its_namespace() -> None:
    """Upstream registers none of these policies."""
    (found,) = webhooks(policy(namespace="ns")).values()
    assert found["clientConfig"]["service"]["path"] == "/ngpol-keys/ns/p"
    terms = found["namespaceSelector"]["matchExpressions"]
    assert {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["ns"],
    } in terms


def test_admission_off() -> None:
    assert not webhooks(policy(evaluation={"admission": {"enabled": False}}))


def test_status_has_only_conditions() -> None:
    """The API server would drop other fields, so each pass would write them again."""
    (document,) = DecodedCelPolicies().decode([json.dumps(policy()).encode()])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    status = cel_status_of(document, {}, now, ready=True, message="")
    assert set(status) == {"conditionStatus"}
    found = status["conditionStatus"]
    assert found["ready"] is True
    messages = {one["type"]: one["message"] for one in found["conditions"]}
    assert messages == {
        "WebhookConfigured": "Webhook configured.",
        "RBACPermissionsGranted": "Policy is ready for reporting.",
    }


@pytest.mark.parametrize("sync", [True, False])
def test_conditions_of_a_synchronizing_policy(*, sync: bool) -> None:
    """A deletion has no object, so the conditions would hide it from the policy."""
    conditions = [{"name": "c", "expression": "object.metadata.name == 'x'"}]
    evaluation = {"synchronize": {"enabled": sync}}
    raw = policy(matchConditions=conditions, evaluation=evaluation)
    ((_, found),) = webhooks(raw).items()
    assert found.get("matchConditions") == (None if sync else conditions)
