"""The webhooks and the status of ImageValidatingPolicies.

A failure means: the API server does not call us for images that a policy covers.
"""

import json
from datetime import UTC, datetime
from typing import Any

from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.webhook_config.cel import (
    cel_mutating_webhooks,
    cel_webhooks,
)
from kyverno_mp.controllers.webhook_config.cel_documents import DecodedCelPolicies
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy

PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
LABELLED = {"name": "prod", "expression": "has(object.metadata.labels)"}


def decoded(*raws: dict[str, Any]) -> tuple[AnyServedPolicy, ...]:
    return DecodedCelPolicies().decode(json.dumps(raw).encode() for raw in raws)


def policy(name: str = "p", namespace: str = "", **spec: Any) -> dict[str, Any]:
    kind = f"{'Namespaced' if namespace else ''}ImageValidatingPolicy"
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": [PODS]},
            "attestors": [{"name": "n", "notary": {"certs": {"value": "c"}}}],
            "validations": [{"expression": "true"}],
            **spec,
        },
    }


def webhooks(*raws: dict[str, Any]) -> dict[str, Any]:
    options = WebhookOptions(ca_bundle=b"ca")
    return {one["name"]: one for one in cel_webhooks(decoded(*raws), options)}


def mutating(*raws: dict[str, Any]) -> dict[str, Any]:
    options = WebhookOptions(ca_bundle=b"ca")
    found = cel_mutating_webhooks(decoded(*raws), options)
    return {one["name"]: one for one in found}


def test_policies_that_add_digests_mutate_the_same_objects() -> None:
    off: dict[str, Any] = {"validationConfigurations": {"mutateDigest": False}}
    on: dict[str, Any] = {
        "validationConfigurations": {"mutateDigest": True, "verifyDigest": False}
    }
    given = policy("a"), policy("b", **on), policy("c", **off)
    ((name, found),) = mutating(*given).items()
    assert name == "ivpol.mutate.kyverno.svc-fail"
    assert found["clientConfig"]["service"]["path"] == "/ivpol/mutate/a/b"
    (validating,) = webhooks(*given[:2]).values()
    assert found["rules"] == validating["rules"]
    assert found["reinvocationPolicy"] == "Never"


def test_namespaced_policies_mutate_only_their_namespace() -> None:
    ((name, found),) = mutating(policy(namespace="a")).items()
    assert name == "nivpol.mutate.kyverno.svc-fail"
    assert found["clientConfig"]["service"]["path"] == "/nivpol-mutate-keys/a/p"
    (validating,) = webhooks(policy(namespace="a")).values()
    assert found["namespaceSelector"] == validating["namespaceSelector"]


def test_pods_of_kyverno_get_the_paths_that_it_registers() -> None:
    given = decoded(policy(namespace="a"))
    options = WebhookOptions(ca_bundle=b"ca", upstream_paths=True)
    webhooks_of = (
        *cel_webhooks(given, options),
        *cel_mutating_webhooks(given, options),
    )
    assert [one["clientConfig"]["service"]["path"] for one in webhooks_of] == [
        "/nivpol/validate/p",
        "/nivpol/mutate/p",
    ]


def test_policies_share_a_webhook_with_their_autogen_variants() -> None:
    ((name, found),) = webhooks(policy("b"), policy("a")).items()
    assert name == "ivpol.validate.kyverno.svc-fail"
    assert found["clientConfig"]["service"]["path"] == "/ivpol/validate/a/b"
    resources = {one for rule in found["rules"] for one in rule["resources"]}
    assert {"pods", "deployments", "cronjobs"} <= resources


def test_conditions_require_a_separate_webhook() -> None:
    given = policy(matchConditions=[LABELLED], failurePolicy="Ignore")
    ((name, found),) = webhooks(given).items()
    assert name == "ivpol.validate.kyverno.svc-ignore-finegrained-p"
    assert found["clientConfig"]["service"]["path"] == "/ivpol/validate/p"
    assert [one["name"] for one in found["matchConditions"]][:3] == [
        "autogen-prod",
        "autogen-cronjobs-prod",
        "autogen-defaults-prod",
    ]


def test_namespaced_policies_get_only_their_namespace() -> None:
    ((name, found),) = webhooks(policy(namespace="a")).items()
    assert name == "nivpol.validate.kyverno.svc-fail"
    assert found["clientConfig"]["service"]["path"] == "/nivpol-keys/a/p"
    expected = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": ["a"],
    }
    assert expected in found["namespaceSelector"]["matchExpressions"]


def test_disabled_and_json_policies_are_not_registered() -> None:
    off = policy("a", evaluation={"admission": {"enabled": False}})
    json_mode = policy("b", evaluation={"mode": "JSON"})
    assert webhooks(off, json_mode) == mutating(off, json_mode) == {}


def test_status_lists_the_autogen_variants() -> None:
    (given,) = decoded(policy(matchConditions=[LABELLED]))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = cel_status_of(given, {}, now, ready=True, message="")
    assert found["conditionStatus"]["ready"] is True
    configs = found["autogen"]["configs"]
    assert set(configs) == {"cronjobs", "defaults"}
    spec = configs["cronjobs"]["spec"]
    assert spec["attestors"] == [{"name": "n", "notary": {"certs": {"value": "c"}}}]
    assert "jobTemplate" in spec["matchConditions"][0]["expression"]
