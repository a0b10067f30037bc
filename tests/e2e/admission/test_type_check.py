"""CEL of policies checked against the cluster's schemas, as the cluster itself does.

The oracle is the API server's own type checker: a ValidatingAdmissionPolicy with the
same expressions, whose status the controller manager fills. A failure means: an author
gets no warning of a misspelt field, or a warning of a correct one.
"""

import json
import random
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.product import Product
from tests.waiting import HANG_S, wait_for

POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
NATIVE = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = {
    "Pod": ("", "v1", "pods"),
    "Deployment": ("apps", "v1", "deployments"),
    "Gauge": ("type-check.test", "v1", "gauges"),
}
PLACE = re.compile(
    r"spec\.rules\[0\]\.validate\.cel\.expressions\[(\d+)\]\.expression:"
)
NUMBERED = re.compile(r"\b(Pod|Deployment|Gauge|ConfigMap)\d+")
CHECKED = 72
NOT_FOUND = 404
AT_ONCE = 4
"""Expressions per policy: beyond 4096 characters the API server cuts warnings."""

PATHS = [
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.labels.app",
    "metadata.nam",
    "metadata.creationTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.finalizers",
    "metadata.ownerReferences[0].kind",
    "metadata.managedFields[0].fieldsV1",
    "kind",
    "spec",
    "spec.replicas",
    "spec.hostNetwork",
    "spec.typo",
    "spec.nodeSelector",
    "spec.tolerations",
    "spec.containers",
    "spec.containers[0].image",
    "spec.containers[0].resources.limits.cpu",
    "spec.containers[0].livenessProbe.httpGet.port",
    "spec.containers[0].imag",
    "spec.securityContext.runAsUser",
    "spec.template.spec.containers[0].name",
    "spec.strategy.rollingUpdate.maxSurge",
    "spec.selector.matchLabels.a",
    "status.phase",
    "spec.level",
    "spec.port",
    "spec.free",
    "spec.free.x",
    "spec.tags",
    "spec.names[0]",
    "spec.every",
    "spec.inner.metadata.name",
    "spec.inner.x",
    "spec.dash__dash__ed",
    "status.x",
    "stat",
]
SHAPES = (
    "object.{p} == {v}",
    "oldObject.{p} != {v}",
    "object.{p} < {w}",
    "object.{p} == object.{q}",
    "has(object.{p}.name)",
    "object.{p} in [{v}]",
    "object.{p} + {w} == {w}",
    "size(object.{p}) == 1",
    "object.{p}.all(x, x == {v})",
    "object.{p}.exists(x, x.name == {v})",
    "object.{p}.startsWith('a')",
    "object.{p} ? true : false",
    "object.{p} && variables.one == {v}",
    "variables.two == object.{p}",
    "params.data == object.{p}",
    "object.?{p}.hasValue()",
)
ORDERED = ("1", "'a'", "1.5", "duration('1h')")
VALUES = ("1", "'a'", "1.5", "true", "null", "duration('1h')", "[]", "{'a': 1}")
GAUGE_SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "level": {"type": "integer"},
        "port": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "tags": {"type": "object", "additionalProperties": {"type": "number"}},
        "names": {"type": "array", "items": {"type": "string"}},
        "every": {"type": "string", "format": "duration"},
        "dash-ed": {"type": "boolean"},
        "inner": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}


def gauges() -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": GAUGE_SPEC}}
        },
    }
    names = {"plural": "gauges", "singular": "gauge", "kind": "Gauge"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gauges.type-check.test"},
        "spec": {
            "group": "type-check.test",
            "names": {**names, "listKind": "GaugeList"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@pytest.fixture
def served(api: Api, product: Product) -> Iterator[None]:
    """Serve a custom kind that the product supports."""
    assert product.health_port
    api.create(CRDS, gauges())
    document = "apis/type-check.test/v1"
    wait_for(lambda: document in api.get("/openapi/v3")["paths"])
    wait_for(lambda: told(api, "Gauge", ["object.typo == 1"]).get(0))
    yield
    path = f"{CRDS}/gauges.type-check.test"
    api.delete(path)
    wait_for(lambda: api.ask("GET", path)[0] == NOT_FOUND)


def cel_of(texts: list[str]) -> dict[str, Any]:
    return {
        "expressions": [{"expression": text} for text in texts],
        "variables": [
            {"name": "one", "expression": "object.metadata.name"},
            {"name": "two", "expression": "object.metadata.labels"},
        ],
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "paramRef": {"name": "c", "parameterNotFoundAction": "Allow"},
    }


def policy(kind: str, texts: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "type-check"},
        "spec": {
            "background": False,
            "rules": [
                {
                    "name": "r",
                    "match": {"any": [{"resources": {"kinds": [kind]}}]},
                    "validate": {"cel": cel_of(texts)},
                }
            ],
        },
    }


def told(api: Api, kind: str, texts: list[str]) -> dict[int, str]:
    """Return the product's warnings by the number of the expression."""
    api.create(f"{POLICIES}?dryRun=All", policy(kind, texts))
    found = {}
    for text in api.warnings:
        place = PLACE.match(text)
        if place and "Kind=" in text:
            found[int(place[1])] = NUMBERED.sub(r"\1", text[place.end() :])
    return found


def told_by_cluster(api: Api, kind: str, texts: list[str]) -> dict[int, str]:
    """Return the warnings of the API server's own checker for the same expressions."""
    group, version, plural = KINDS[kind]
    cel = cel_of(texts)
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": [plural],
        "operations": ["CREATE"],
    }
    raw = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "type-check"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": cel["expressions"],
            "variables": cel["variables"],
            "paramKind": cel["paramKind"],
        },
    }
    api.create(NATIVE, raw)
    try:

        def checked() -> Any:
            status = api.get(f"{NATIVE}/type-check").get("status") or {}
            return status if status.get("observedGeneration") else None

        wait_for(checked)
        checking = checked().get("typeChecking") or {}
    finally:
        api.delete(f"{NATIVE}/type-check")
    found = {}
    for one in checking.get("expressionWarnings") or []:
        index = int(re.findall(r"\d+", one["fieldRef"])[0])
        found[index] = NUMBERED.sub(r"\1", one["warning"].replace("\n", ";"))
    return found


def test_user_sees_the_warning(cluster: Cluster, product: Product) -> None:
    """`kubectl apply` of a policy with a misspelt field."""
    assert product.health_port
    done = subprocess.run(
        [cluster.kubectl, "apply", "--dry-run=server", "-f", "-"],
        input=json.dumps(policy("Pod", ["object.spec.hostNetwrk == true"])),
        env={"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert (
        "Warning: spec.rules[0].validate.cel.expressions[0].expression:/v1, Kind=Pod:"
        " ERROR: <input>:1:12: undefined field 'hostNetwrk';"
        " | object.spec.hostNetwrk == true; | ...........^;"
    ) in done.stderr


@pytest.mark.usefixtures("served")
@pytest.mark.timeout(1200)
def test_api_server_returns_the_same_warnings(api: Api) -> None:
    chosen = random.Random(9)
    differing, warned = [], 0
    for number in range(CHECKED // AT_ONCE):
        kind = list(KINDS)[number % len(KINDS)]
        texts = [
            chosen.choice(SHAPES).format(
                p=chosen.choice(PATHS),
                q=chosen.choice(PATHS),
                v=chosen.choice(VALUES),
                w=chosen.choice(ORDERED),
            )
            for _ in range(AT_ONCE)
        ]
        ours, theirs = told(api, kind, texts), told_by_cluster(api, kind, texts)
        warned += len(theirs)
        differing += [
            (kind, texts[index], theirs.get(index), ours.get(index))
            for index in range(AT_ONCE)
            if theirs.get(index) != ours.get(index)
        ]
    assert differing == []
    assert CHECKED // 4 < warned < CHECKED


@pytest.mark.usefixtures("served")
def test_changed_kind_is_checked_with_its_new_schema(api: Api) -> None:
    text = "object.spec.levle == 1"
    assert "undefined field 'levle'" in told(api, "Gauge", [text])[0]
    changed = gauges()["spec"]
    shape = changed["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields = {**GAUGE_SPEC["properties"], "levle": {"type": "integer"}}
    shape["spec"] = {"type": "object", "properties": fields}
    api.patch(f"{CRDS}/gauges.type-check.test", {"spec": changed})
    wait_for(lambda: told(api, "Gauge", [text]) == {})
