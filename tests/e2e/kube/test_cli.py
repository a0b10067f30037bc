"""The commands that use a cluster, run as a user would, on a real one."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.waiting import HANG_S, wait_for

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def run(
    cluster: Cluster, *arguments: object, code: int = 0, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run kyverno-mp with the cluster's kubeconfig; the exit code must be ``code``."""
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", *map(str, arguments)],
        env=os.environ | {"KUBECONFIG": str(kubeconfig or cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """Yield a separate namespace with a unique label."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {"team": name}}
    api.create("/api/v1/namespaces", {"metadata": metadata})
    yield name
    api.ask("DELETE", f"/api/v1/namespaces/{name}")


def version(name: str, *, storage: bool) -> dict[str, Any]:
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
    }


def definition(group: str, *, scope: str, old_is_stored: bool) -> dict[str, Any]:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    versions = [
        version("v1", storage=not old_is_stored),
        version("v1alpha1", storage=old_is_stored),
    ]
    spec = {"group": group, "scope": scope, "names": names, "versions": versions}
    return {"metadata": {"name": f"widgets.{group}"}, "spec": spec}


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
def test_migrate(cluster: Cluster, api: Api, scope: str) -> None:
    """Afterwards no object in etcd needs the old version: it can be removed."""
    group = f"x{uuid.uuid4().hex[:8]}.example.org"
    name, path = f"widgets.{group}", f"{CRDS}/widgets.{group}"
    api.create(CRDS, definition(group, scope=scope, old_is_stored=True))
    inside = "/namespaces/default" if scope == "Namespaced" else ""
    widgets = f"/apis/{group}/v1alpha1{inside}/widgets"
    wait_served(api, widgets)
    # More than a page.
    for number in range(520):
        api.create(
            widgets,
            {
                "apiVersion": f"{group}/v1alpha1",
                "kind": "Widget",
                "metadata": {"name": f"w{number}"},
                "spec": {"size": number},
            },
        )
    try:
        already = run(cluster, "migrate", "--resource", name)
        assert "already up to date, nothing to do" in already.stdout

        found = api.get(path)
        found["spec"] = definition(group, scope=scope, old_is_stored=False)["spec"]
        replace(api, path, found)
        assert api.get(path)["status"]["storedVersions"] == ["v1alpha1", "v1"]
        # K8S: the server's handlers learn of it by a separate watch.
        time.sleep(1)
        done = run(cluster, "migrate", "--resource", name)
        assert done.stdout.splitlines() == [
            f"migrating resource: {name} ...",
            "stored version: v1",
            "migrating resources...",
            "patching status...",
        ]
        found = api.get(path)
        assert found["status"]["storedVersions"] == ["v1"]
        found["spec"]["versions"].pop()
        replace(api, path, found)
        kept = api.get(f"/apis/{group}/v1{inside}/widgets?limit=1000")["items"]
        assert {one["spec"]["size"] for one in kept} == set(range(520))
    finally:
        api.ask("DELETE", path)


def test_migrate_of_missing_resources(cluster: Cluster) -> None:
    done = run(cluster, "migrate", "--resource", "nothing.example.org", code=1)
    assert "not found" in done.stderr


def test_migrate_without_resources(cluster: Cluster) -> None:
    assert run(cluster, "migrate").stdout == ""


POLICIES = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: limited}
spec:
  rules:
  - name: by-team
    match:
      any:
      - resources:
          kinds: [ConfigMap]
          namespaceSelector: {matchLabels: {team: NAMESPACE}}
    exclude: {any: [{resources: {names: [kube-root-ca.crt, limits]}}]}
    context:
    - {name: limits, configMap: {name: limits, namespace: NAMESPACE}}
    - name: pods
      apiCall:
        urlPath: /api/v1/namespaces/NAMESPACE/configmaps
        jmesPath: "items[].metadata.name | length(@)"
    validate:
      message: "{{ request.object.metadata.name }} {{ pods }}"
      deny:
        conditions:
          any:
          - key: "{{ length(request.object.data.text) }}"
            operator: GreaterThan
            value: "{{ limits.data.most }}"
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: named}
spec:
  rules:
  - name: of-namespaces
    match: {any: [{resources: {kinds: [Namespace], names: [NAMESPACE]}}]}
    validate: {message: no owner, pattern: {metadata: {labels: {owner: "?*"}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: short}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: ["*"]}
  validations: [{expression: "size(object.data) < int(params.data.most)"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: short}
spec:
  policyName: short
  paramRef: {name: limits, namespace: NAMESPACE, parameterNotFoundAction: Deny}
  validationActions: [Deny]
  matchResources:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
"""


@pytest.fixture
def policies(api: Api, namespace: str, tmp_path: Path) -> Path:
    """Write policies that read ConfigMaps of the namespace; one of 240 is rejected."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(maps, {"metadata": {"name": "limits"}, "data": {"most": "9"}})
    for number in range(240):
        text = "x" * (12 if number == 7 else 3)
        made = {"metadata": {"name": f"m{number}"}, "data": {"text": text}}
        api.create(maps, made)
    file = tmp_path / "policies.yaml"
    file.write_text(POLICIES.replace("NAMESPACE", namespace))
    return file


@pytest.mark.parametrize(
    "flags", [(), ("--concurrent", 4, "--batch-size", 100), ("--jobs", 2)]
)
def test_apply(
    cluster: Cluster, namespace: str, policies: Path, flags: tuple[object, ...]
) -> None:
    """Objects, labels, ConfigMaps, calls and parameters come from the cluster."""
    performance = ("--show-performance", "--remove-color")
    done = run(cluster, "apply", policies, "-c", *flags, *performance, code=1)
    failed = [line for line in done.stdout.splitlines() if line.startswith("policy ")]
    assert failed == [
        f"policy limited -> resource {namespace}/ConfigMap/m7 failed:",
        f"policy named -> resource /Namespace/{namespace} failed:",
    ], done.stdout + done.stderr
    assert "1 - by-team m7 24" in done.stdout
    # 239 of the rule, 242 of the policy of the API server.
    assert "\npass: 481, fail: 2, warn: 0, error: 0," in done.stdout
    assert "Resource Loading Performance:" in done.stdout


def test_apply_to_a_namespace_or_kind(
    cluster: Cluster, namespace: str, policies: Path
) -> None:
    done = run(cluster, "apply", policies, "--cluster", "-n", namespace, code=1)
    assert " to 242 resource(s)..." in done.stdout
    done = run(cluster, "apply", policies, "-c", "--cluster-wide-resources", code=1)
    assert "named -> " in done.stdout
    assert "limited -> " not in done.stdout
    named = ("-n", namespace, "-r", "m7", "-r", "m8")
    done = run(cluster, "apply", policies, "-c", *named, "-p", code=1)
    assert "name: m7" in done.stdout
    assert "name: m9" not in done.stdout


def test_apply_without_permissions(cluster: Cluster, api: Api, policies: Path) -> None:
    """A forbidden read is an error, never a pass."""
    if cluster.plane is None:
        pytest.skip("users are made by our own control plane only")
    somebody = cluster.plane.write_user("somebody")
    file = policies.with_name("plain.yaml")
    file.write_text(POLICIES.split("---")[1])
    done = run(cluster, "apply", file, "-c", kubeconfig=somebody, code=1)
    assert "not listed: v1 namespaces: " in done.stderr
    assert "forbidden" in done.stderr
    assert "error: 1, skip: 0" in done.stdout
    stop = "--continue-on-error=false"
    done = run(cluster, "apply", file, "-c", stop, kubeconfig=somebody, code=1)
    assert "Error: failed to load resources (v1 namespaces: " in done.stderr


DELETING = """
apiVersion: policies.kyverno.io/v1
kind: NamespacedDeletingPolicy
metadata: {name: old, namespace: NAMESPACE}
spec:
  schedule: "0 3 * * *"
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  conditions:
  - name: team
    expression: namespaceObject.metadata.labels.team == 'NAMESPACE'
  - {name: old, expression: "object.?data.old.orValue('no') == 'yes'"}
"""


def test_deleting_policy_is_previewed(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    """It lists the objects that the service would delete, without deleting them."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    for name, old in (("a", "yes"), ("b", "no"), ("c", "yes")):
        api.create(maps, {"metadata": {"name": name}, "data": {"old": old}})
    file = tmp_path / "policy.yaml"
    file.write_text(DELETING.replace("NAMESPACE", namespace))
    lines = run(cluster, "cleanup", "--cluster", file).stdout.splitlines()
    shown = f"{namespace}/old"
    assert [line.split() for line in lines[1:3]] == [
        [shown, "ConfigMap", namespace, "a"],
        [shown, "ConfigMap", namespace, "c"],
    ]
    assert lines[3].startswith(f"{shown}: 2 of ")
    assert {"a", "b", "c"} <= {
        one["metadata"]["name"] for one in api.get(maps)["items"]
    }


GENERATING = """
apiVersion: policies.kyverno.io/v1
kind: GeneratingPolicy
metadata: {name: NAMESPACE}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {team: NAMESPACE}}
    objectSelector: {matchLabels: {trigger: "yes"}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps],
       operations: [CREATE, UPDATE]}
  evaluation: {synchronize: {enabled: true}}
  variables:
  - name: posted
    expression: >-
      resource.post('v1', 'configmaps', 'NAMESPACE', {'apiVersion': dyn('v1'),
      'kind': dyn('ConfigMap'), 'metadata': dyn({'name': 'posted'})}).metadata.name
  generate:
  - expression: >-
      generator.apply(object.metadata.namespace, [{'apiVersion': dyn('v1'),
      'kind': dyn('ConfigMap'), 'data': dyn({'from': variables.posted}),
      'metadata': dyn({'name': 'out-' + object.metadata.name})}])
"""


def test_generating_policy_is_previewed(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    """It lists the objects that the service would write, without writing them."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("new", "edited"):
        metadata = {"name": name, "labels": {"trigger": "yes"}}
        made = api.create(maps, {"metadata": metadata})
    labels = {
        "app.kubernetes.io/managed-by": "kyverno",
        **{
            f"generate.kyverno.io/{name}": value
            for name, value in (
                ("policy-name", namespace),
                ("trigger-name", "edited"),
                ("trigger-namespace", namespace),
                ("trigger-uid", made["metadata"]["uid"]),
                ("trigger-kind", "ConfigMap"),
                ("trigger-group", ""),
                ("trigger-version", "v1"),
            )
        },
    }
    metadata = {"name": "out-edited", "labels": labels}
    api.create(maps, {"metadata": metadata, "data": {"from": "hand"}})
    file = tmp_path / "policy.yaml"
    file.write_text(GENERATING.replace("NAMESPACE", namespace))
    before = _names_of(api, maps)
    done = run(cluster, "generate", "--cluster", file)
    rows = [line.split()[:6] for line in done.stdout.splitlines()[1:3]]
    assert sorted(rows) == [
        ["create", namespace, namespace, "ConfigMap", namespace, "out-new"],
        ["update", namespace, namespace, "ConfigMap", namespace, "out-edited"],
    ]
    assert "-  from: hand\n+  from: posted\n" in done.stdout
    assert _names_of(api, maps) == before


def _names_of(api: Api, maps: str) -> list[str]:
    """Return the names without that of Kubernetes, which appears at some time."""
    names = [one["metadata"]["name"] for one in api.get(maps)["items"]]
    return [name for name in names if name != "kube-root-ca.crt"]


WIDGETS = """
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: widgets}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [GROUP], apiVersions: [v1], resources: [widgets],
       operations: [CREATE]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{labels: {"new": "yes"}},
        spec: Object.spec{entries: [Object.spec.entries{name: "a", port: 2}]}}
"""


def test_custom_kind_merges_by_its_crd_schema(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    """Without the API server's types, the elements of a list would be lost."""
    group = f"x{uuid.uuid4().hex[:8]}.example.org"
    made = definition(group, scope="Namespaced", old_is_stored=False)
    entry = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "port": {"type": "integer"}},
        "required": ["name"],
    }
    entries = {
        "type": "array",
        "items": entry,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    spec = {"type": "object", "properties": {"entries": entries}}
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = {
        "spec": spec
    }
    api.create(CRDS, made)
    widgets = f"/apis/{group}/v1/namespaces/{namespace}/widgets"
    try:
        wait_served(api, widgets)
        widget = {
            "apiVersion": f"{group}/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "spec": {"entries": [{"name": "a", "port": 1}, {"name": "b"}]},
        }
        api.create(widgets, widget)
        wait_published(api, f"apis/{group}/v1")
        file = tmp_path / "policy.yaml"
        file.write_text(WIDGETS.replace("GROUP", group))
        done = run(cluster, "apply", file, "--cluster", "-n", namespace)
        lines = [line.strip() for line in done.stdout.splitlines()]
        first = lines.index("entries:")
        assert sorted(lines[first + 1 : first + 4]) == [
            "- name: a",
            "- name: b",
            "port: 2",
        ]
        assert 'new: "yes"' in lines
    finally:
        api.ask("DELETE", f"{CRDS}/widgets.{group}")


def wait_published(api: Api, path: str) -> None:
    """Wait until the API server's OpenAPI documents contain a group and version."""
    wait_for(lambda: path in api.get("/openapi/v3")["paths"])


def replace(api: Api, path: str, raw: dict[str, Any]) -> None:
    status, body = api.ask("PUT", path, raw)
    assert status == 200, body


def wait_served(api: Api, path: str) -> None:
    """Wait until the API server has a handler for a new definition."""
    wait_for(lambda: api.ask("GET", path)[0] == 200)


def test_facts_have_only_what_policies_name(
    cluster: Cluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    config_maps = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in (namespace, "other"):
        api.create(config_maps, {"metadata": {"name": name}, "data": {"a": name}})
    config_map = {"name": namespace, "namespace": "{{request.namespace}}"}
    rule = {"name": "r", "context": [{"name": "c", "configMap": config_map}]}
    policy = tmp_path / "policy.yaml"
    document: dict[str, Any] = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy"}
    document |= {"metadata": {"name": "p"}, "spec": {"rules": [rule]}}
    policy.write_text(yaml.safe_dump(document))
    facts = tmp_path / "facts.yaml"
    run(cluster, "facts", policy, "-o", facts)
    documents = list(yaml.safe_load_all(facts.read_text()))
    found = [raw for raw in documents if raw["kind"] == "ConfigMap"]
    assert [raw["data"] for raw in found] == [{"a": namespace}]
    labels = {
        raw["metadata"]["name"]: raw["metadata"]["labels"]
        for raw in documents
        if raw["kind"] == "Namespace"
    }
    assert labels[namespace]["team"] == namespace
