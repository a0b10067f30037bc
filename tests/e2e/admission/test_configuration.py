"""Changes of the ConfigMaps of a running install take effect without a restart."""

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kyverno_mp.controllers.webhook_config.options import MUTATING, VALIDATING
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES
from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from tests.e2e.admission.test_admission import (
    CONFIG_MAPS,
    RESOURCE_WEBHOOK,
    Pod,
    client,
    config_map,
    is_denied,
    objects,
    pod,
)
from tests.e2e.installation import policy
from tests.waiting import wait_for

__all__ = ["client", "objects", "pod"]  # fixtures of this module, too
KYVERNO = ("kyverno", "kyverno")
METRICS = ("kyverno", "kyverno-metrics")


def say(objects: Objects, key: tuple[str, str], **data: str) -> None:
    """Write one of our ConfigMaps completely."""
    metadata = {"namespace": key[0], "name": key[1]}
    raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    if objects.find(CONFIG_MAPS, key) is None:
        objects.create(CONFIG_MAPS, raw)
    else:
        objects.replace(CONFIG_MAPS, raw)


def answer(pod: Pod, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pod.health_port}{path}") as found:
        text: str = found.read().decode()
    return text


def problems(pod: Pod) -> list[str]:
    found: list[str] = json.loads(answer(pod, "/policies"))["problems"]
    return found


def webhook(objects: Objects, kind: str = VALIDATING) -> dict[str, Any]:
    name = RESOURCE_WEBHOOK[1].replace(
        "validating", "mutating" if kind == MUTATING else "validating"
    )
    found: dict[str, Any] = objects.find(RESOURCES[kind], ("", name)) or {}
    return found


def selectors(objects: Objects) -> list[Any]:
    return [one.get("namespaceSelector") for one in webhook(objects)["webhooks"]]


@pytest.fixture(scope="module")
def enforced(pod: Pod, objects: Objects) -> Iterator[Pod]:
    """Yield a pod with one policy in force."""
    objects.create(RULE_POLICIES.cluster, policy("configured", "team", "ConfigMap"))
    wait_for(lambda: is_denied(objects, config_map("m")))
    yield pod
    objects.delete(RULE_POLICIES.cluster, ("", "configured"))
    for key in (KYVERNO, METRICS):
        objects.delete(CONFIG_MAPS, key)


@pytest.mark.parametrize(
    "data",
    [
        {"resourceFilters": "[ConfigMap,default,m*]"},
        {"excludeGroups": "system:masters"},
        {"excludeUsernames": "*"},
        {"excludeClusterRoles": "cluster-admin"},
    ],
    ids=lambda data: next(iter(data)),
)
def test_filter_takes_effect_and_is_removed(
    enforced: Pod, objects: Objects, data: dict[str, str]
) -> None:
    assert enforced.process.poll() is None
    say(objects, KYVERNO, **data)
    wait_for(lambda: not is_denied(objects, config_map("m")))
    objects.delete(CONFIG_MAPS, KYVERNO)
    wait_for(lambda: is_denied(objects, config_map("m")))


def test_webhook_configurations_have_the_configured_fields(
    enforced: Pod, objects: Objects
) -> None:
    """A value of the wrong type is reported; the last valid one stays in force."""
    assert enforced.process.poll() is None
    before = selectors(objects)
    apart = {"matchExpressions": [{"key": "apart", "operator": "DoesNotExist"}]}
    condition = {"name": "not-me", "expression": "request.userInfo.username != 'me'"}
    rest = {
        "webhookAnnotations": '{"admissions.enforcer/disabled": "true"}',
        "webhookLabels": '{"team": "security"}',
        "matchConditions": json.dumps([condition]),
    }
    said = {"namespaceSelector": apart, "objectSelector": {"matchLabels": {"a": "b"}}}
    say(objects, KYVERNO, webhooks=json.dumps(said), **rest)
    wait_for(lambda: selectors(objects) == [apart] * len(before))
    found = webhook(objects)
    assert found["metadata"]["annotations"] == {"admissions.enforcer/disabled": "true"}
    assert found["metadata"]["labels"]["team"] == "security"
    for one in found["webhooks"]:
        assert one["objectSelector"] == {"matchLabels": {"a": "b"}}
        assert condition in one["matchConditions"]
    version = found["metadata"]["resourceVersion"]
    assert not is_denied(objects, config_map("m"))
    assert is_denied(objects, config_map("m", a="b"))
    broken = {
        "webhooks": json.dumps([said]),
        "matchConditions": '[{"name": "x", "expression": "nobody.knows"}]',
    }
    say(objects, KYVERNO, **(rest | broken))
    wait_for(lambda: len(problems(enforced)) == len(broken))
    assert [text.split(":")[0] for text in problems(enforced)] == [
        "ConfigMap kyverno"
    ] * len(broken)
    assert webhook(objects)["metadata"]["resourceVersion"] == version
    objects.delete(CONFIG_MAPS, KYVERNO)
    wait_for(lambda: selectors(objects) == before)
    assert "annotations" not in webhook(objects)["metadata"]
    wait_for(lambda: problems(enforced) == [])
    assert is_denied(objects, config_map("m"))


def test_rules_follow_registry_and_context_size_settings(
    enforced: Pod, objects: Objects
) -> None:
    assert enforced.process.poll() is None
    asking = policy("asking", "image", "ConfigMap")
    rule = asking["spec"]["rules"][0]
    rule["match"]["any"][0]["resources"]["operations"] = ["CREATE"]
    image = "{{ image_normalize('nginx') }}"
    rule["context"] = [{"name": "image", "variable": {"value": image}}]
    rule["validate"]["message"] = "is needed: {{ image }}"
    rule["validate"]["pattern"] = {"data": {"image": "{{ image }}"}}
    objects.create(RULE_POLICIES.cluster, asking)
    hub = config_map("m", team="x") | {"data": {"image": "docker.io/nginx:latest"}}
    own = config_map("m", team="x") | {"data": {"image": "ghcr.io/nginx:latest"}}
    wait_for(lambda: is_denied(objects, own) and not is_denied(objects, hub))
    say(objects, KYVERNO, defaultRegistry="ghcr.io")
    wait_for(lambda: is_denied(objects, hub) and not is_denied(objects, own))
    say(objects, KYVERNO, defaultRegistry="ghcr.io", maxContextSize="3")
    wait_for(lambda: "context size limit exceeded" in refusal(objects, own))
    objects.delete(CONFIG_MAPS, KYVERNO)
    objects.delete(RULE_POLICIES.cluster, ("", "asking"))
    wait_for(lambda: not is_denied(objects, own))


def test_metrics_configuration_applies_without_restart(
    enforced: Pod, objects: Objects
) -> None:
    assert enforced.process.poll() is None
    asked = {
        "namespaces": '{"exclude": ["default"]}',
        "bucketBoundaries": "0.25, 2",
        "metricsExposure": json.dumps(
            {
                "kyverno_client_queries_total": {
                    "disabledLabelDimensions": ["resource_namespace"]
                },
                "kyverno_policy_changes": {"enabled": False},
            }
        ),
    }
    counted = 'kyverno_admission_requests_total{resource_kind="ConfigMap",'
    of_default = counted + 'resource_namespace="default"'
    assert is_denied(objects, config_map("m"))
    wait_for(lambda: of_default in answer(enforced, "/metrics"))
    for line in (
        'kyverno_controller_reconcile_total{controller_name="webhook-controller"} ',
        'kyverno_mp_informer_objects{resource="clusterpolicies"} ',
        'kyverno_mp_informer_objects{resource="configmaps/kyverno"} 0',
        'kyverno_mp_informer_failures{resource="namespaces"} 0',
        "kyverno_policy_changes_total{",
        (
            'kyverno_client_queries_total{operation="watch",client_type="kyverno",'
            'resource_kind="ClusterPolicy",resource_namespace=""} '
        ),
    ):
        # Numbers are published once a second.
        wait_for(partial(_has_line, enforced, line))
    say(objects, METRICS, **asked)
    wait_for(lambda: of_default not in answer(enforced, "/metrics"))
    shaped = answer(enforced, "/metrics")
    assert 'le="0.25"' in _upstreams(shaped)
    assert 'le="0.5"' not in _upstreams(shaped)
    assert "kyverno_policy_changes_total" not in shaped
    queries = [line for line in shaped.splitlines() if "client_queries_total{" in line]
    assert queries
    assert not any("resource_namespace" in line for line in queries)
    objects.delete(CONFIG_MAPS, METRICS)
    wait_for(lambda: of_default in answer(enforced, "/metrics"))
    assert 'le="0.5"' in _upstreams(answer(enforced, "/metrics"))


def _upstreams(metrics: str) -> str:
    """Return the metrics with Kyverno's names; others have separate buckets."""
    lines = metrics.splitlines()
    return "\n".join(one for one in lines if not one.startswith("kyverno_mp_"))


def _has_line(pod: Pod, start: str) -> bool:
    return f"\n{start}" in answer(pod, "/metrics")


def refusal(objects: Objects, raw: dict[str, Any]) -> str:
    """Return the reason why the object was rejected, "" if it was not."""
    try:
        objects.create(CONFIG_MAPS, raw)
    except KubeRefused as error:
        return error.message
    objects.delete(CONFIG_MAPS, ("default", raw["metadata"]["name"]))
    return ""
