"""``apply --cluster`` and ``migrate`` against a small, strict API server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.cluster import put_pods
from tests.unit.cli.conftest import Command, Done
from tests.unit.kube.fake_api import FakeApi

POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labelled}
spec:
  rules:
  - name: has-app
    match: {any: [{resources: {kinds: [KINDS]}}]}
    validate: {message: no app, pattern: {metadata: {labels: {app: "?*"}}}}
"""
Table = list[list[str]]


@pytest.fixture
def apply(command: Command, tmp_path: Path) -> Any:
    def call(kinds: str, *flags: object, policy: str = POLICY) -> Done:
        file = tmp_path / "policy.yaml"
        file.write_text(policy.replace("KINDS", kinds))
        return command("apply", file, "--cluster", *flags)

    return call


def summary(passed: int = 0, failed: int = 0, errors: int = 0) -> str:
    return f"\npass: {passed}, fail: {failed}, warn: 0, error: {errors}, skip: 0 \n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_objects_of_matched_kinds_are_listed_in_pages(
    api: FakeApi, apply: Any, jobs: int
) -> None:
    put_pods(api, 7)
    put_pods(api, 3, "other", app="x")
    done = apply("Pod", "--batch-size", 4, "--jobs", jobs)
    assert done.code == 1
    assert "Applying 3 policy rule(s) to 10 resource(s)..." in done.out
    assert "policy labelled -> resource apps/Pod/p0 failed:" in done.out
    assert done.out.endswith(summary(3, 7))
    assert api.count(r"GET /api/v1/pods\?.*limit=4") == 3
    assert not api.count("GET /api/v1/(secrets|configmaps|bindings)")


def test_list_that_the_api_server_restarts(api: FakeApi, apply: Any) -> None:
    """Otherwise, results were for objects that are gone, or for old versions."""
    put_pods(api, 7)
    api.fault("continue=4", "expire")

    def on_request(_method: str, target: str) -> None:
        if "continue=4" in target:
            api.on_request = lambda _method, _target: None
            api.remove("/api/v1/namespaces/apps/pods/p0")
            path = "/api/v1/namespaces/apps/pods/p1"
            api.put(path, kind="Pod", metadata={"labels": {"app": "x"}})

    api.on_request = on_request
    done = apply("Pod", "--batch-size", 4)
    assert "to 6 resource(s)..." in done.out
    assert done.out.endswith(summary(1, 5))


@pytest.mark.parametrize(
    ("kinds", "flags", "found"),
    [
        ("Pod", ["-n", "other"], 3),
        ("Pod,Namespace", ["-n", "other"], 3),
        ("Pod,Namespace", [], 7),
        ("Pod,Namespace", ["--cluster-wide-resources"], 2),
        # With a namespace the flag has no effect.
        ("Pod,Namespace", ["--cluster-wide-resources", "-n", "other"], 3),
        ("Pod", ["-r", "p1"], 2),
        ("Pod", ["-r", "folder/p1.yaml", "-r", "p2"], 3),
        ("Binding", [], 0),
        ("Unknown", [], 0),
        ("Pod/status", [], 0),
        ('"*"', ["--concurrent", 8], 7),
    ],
)
def test_selected_objects(
    api: FakeApi, apply: Any, kinds: str, flags: list[object], found: int
) -> None:
    put_pods(api, 2)
    put_pods(api, 3, "other")
    policy = POLICY.replace("spec:", "spec:\n  background: false", 1)
    done = apply(kinds, *flags, policy=policy)
    assert f" to {found} resource(s)..." in done.out, done.err


def test_object_served_in_two_versions_counts_once(api: FakeApi, apply: Any) -> None:
    for path in ("/api/v1", "/apis/events.k8s.io/v1"):
        api.put(f"{path}/namespaces/apps/events/e", metadata={"uid": "same"})
    name = "horizontalpodautoscalers"
    for version in ("v1", "v2"):
        path = f"/apis/autoscaling/{version}/namespaces/apps/{name}/h"
        api.put(path, metadata={"uid": "scaler"})
    assert " to 1 resource(s)" in apply("Event").out
    assert " to 1 resource(s)" in apply("HorizontalPodAutoscaler").out
    assert api.count(f"GET /apis/autoscaling/v1/{name}") == 0
    # A kind that the policy names with a version is listed in this version.
    apply("autoscaling/v1/HorizontalPodAutoscaler,HorizontalPodAutoscaler")
    assert api.count(f"GET /apis/autoscaling/v1/{name}") == 1
    assert api.count(f"GET /apis/autoscaling/v2/{name}") == 1


def test_unlistable_kind_is_an_error(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1, app="x")
    api.fault("GET /api/v1/secrets", 403, 403)
    done = apply("Pod,Secret")
    assert done.code == 1
    assert "not listed: v1 secrets: " in done.err
    assert done.out.endswith(summary(1, errors=1))
    done = apply("Pod,Secret", "--continue-on-error=false")
    assert done.code == 1
    assert "Error: failed to load resources (v1 secrets: " in done.err


def test_resource_name_without_an_object(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1)
    done = apply("Pod", "-r", "p0", "-r", "gone")
    assert done.code == 1
    assert "gone not found in cluster" in done.err


def test_performance_is_reported(api: FakeApi, apply: Any) -> None:
    put_pods(api, 5)
    done = apply("Pod", "--show-performance", "--batch-size", 2, "--concurrent", 3)
    assert "  Resources loaded: 5\n  API calls: 3\n  Concurrent workers: 1" in done.out


def test_reports_name_the_object_and_its_version(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1)
    done = apply("Pod", "--policy-report", "--output-format", "json")
    (row,) = json.loads(done.out)["results"]
    (reference,) = row["resources"]
    assert reference["uid"].startswith("u")
    assert reference["resourceVersion"]
    assert reference["apiVersion"] == "v1"


SELECTOR = "{resources: {kinds: [Pod], namespaceSelector: {matchLabels: {team: a}}}}"


def test_namespace_labels_come_from_the_cluster(api: FakeApi, apply: Any) -> None:
    put_pods(api, 2)
    put_pods(api, 2, "other")
    policy = POLICY.replace("{resources: {kinds: [KINDS]}}", SELECTOR)
    assert apply("", policy=policy).out.endswith(summary(failed=2))
    assert api.count("GET /api/v1/namespaces/apps") == 1


def test_unreadable_namespace_ends_the_run(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1)
    api.faults.append(("GET /api/v1/namespaces/apps$", 403))
    policy = POLICY.replace("{resources: {kinds: [KINDS]}}", SELECTOR)
    done = apply("", policy=policy)
    assert done.code == 1
    assert "Error: failed to get the resource's namespace (" in done.err


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("match", ["{resources: {kinds: [Pod]}}", SELECTOR])
def test_objects_of_deleted_namespaces_are_skipped(
    api: FakeApi, apply: Any, jobs: int, match: str
) -> None:
    """A namespace may be deleted after its objects are listed."""
    put_pods(api, 2)
    put_pods(api, 1, "gone")
    policy = POLICY.replace("{resources: {kinds: [KINDS]}}", match)
    policy = policy.replace("team: a", "kubernetes.io/metadata.name: apps")
    api.put(
        "/api/v1/namespaces/apps",
        metadata={"labels": {"kubernetes.io/metadata.name": "apps"}},
    )
    done = apply("", "--jobs", jobs, policy=policy)
    assert done.out.endswith(summary(failed=2)), done.out + done.err
    assert done.err.count("skipped, its namespace was deleted: gone/Pod/p0\n") == 1


CONTEXT = """
    context:
    - {name: m, configMap: {name: settings, namespace: apps}}
    - name: count
      apiCall: {urlPath: /api/v1/namespaces, jmesPath: "items | length(@)"}
    validate:
      message: "{{ m.data.word }} {{ count }}"
      deny: {}
"""


def test_rules_read_the_cluster(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1)
    path = "/api/v1/namespaces/apps/configmaps/settings"
    api.put(path, data={"word": "hello"})
    head, _, _ = POLICY.partition("    validate:")
    done = apply("Pod", policy=head + CONTEXT.lstrip("\n"))
    assert "1 - has-app hello 2" in done.out, done.out + done.err


MUTATE = """
    mutate:
      targets: [{apiVersion: v1, kind: ConfigMap, namespace: "*", name: "set*"}]
      patchStrategicMerge: {metadata: {labels: {seen: "yes"}}}
"""


def test_targets_come_from_the_cluster(api: FakeApi, apply: Any) -> None:
    put_pods(api, 1)
    api.put("/api/v1/namespaces/apps/configmaps/settings", data={"word": "hello"})
    api.put("/api/v1/namespaces/apps/configmaps/left", data={})
    head, _, _ = POLICY.partition("    validate:")
    done = apply("Pod", policy=head + MUTATE.lstrip("\n"))
    assert "name: settings" in done.out, done.out + done.err
    assert "seen: 'yes'" in done.out or 'seen: "yes"' in done.out
    assert "name: left" not in done.out


def test_piped_resources_have_precedence_over_the_cluster(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apply: Any
) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text("kind: Pod\napiVersion: v1\nmetadata: {name: x}\n")
    put_pods(api, 3)
    api.put("/api/v1/namespaces/default")
    with objects.open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        done = apply("Pod", "-r", "-")
    assert done.out.endswith(summary(failed=1)), done.err


PARAMS = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: v}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: ["*"]}
  validations: [{expression: 'object.spec.priority < int(params.data.most)'}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b}
spec:
  policyName: v
  paramRef: {name: settings, parameterNotFoundAction: Deny}
  validationActions: [Deny]
"""


def test_parameters_come_from_the_cluster(api: FakeApi, apply: Any) -> None:
    """Parameters are read only from the object's namespace."""
    put_pods(api, 3)
    api.put("/api/v1/namespaces/apps/configmaps/settings", data={"most": "2"})
    api.put("/api/v1/namespaces/a/configmaps/settings", data={"most": "0"})
    assert apply("", policy=PARAMS).out.endswith(summary(2, 1))


@pytest.mark.parametrize(("action", "errors"), [("Deny", 3), ("Allow", 0)])
def test_missing_parameters(api: FakeApi, apply: Any, action: str, errors: int) -> None:
    put_pods(api, 3)
    policy = PARAMS.replace("Action: Deny", f"Action: {action}")
    assert apply("", policy=policy).out.endswith(summary(errors=errors))


IN_CEL = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: v}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {team: a}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: ["*"]}
  variables:
  - name: settings
    expression: resource.get('v1', 'configmaps', 'apps', 'settings')
  - name: pods
    expression: resource.list(resource.toGVR('v1', 'Pod'), '', {'app':'x'}).items
  validations:
  - expression: >-
      object.spec.priority < int(variables.settings.data.most)
      && dyn(resource.get('v1', 'configmaps', 'apps', 'gone')) == null
      && variables.pods.size() == 5
      && namespaceObject.metadata.labels.team == 'a'
"""


def test_cel_policies_read_the_cluster(api: FakeApi, apply: Any) -> None:
    put_pods(api, 3)
    put_pods(api, 2, "other", app="x")
    api.put("/api/v1/namespaces/apps/configmaps/settings", data={"most": "2"})
    done = apply("", policy=IN_CEL)
    assert done.out.endswith(summary(2, 1)), done.out + done.err
    assert "policy v -> resource apps/Pod/p2 failed:" in done.out
    assert api.count(r"GET /api/v1/pods\?labelSelector=app%3Dx")


def test_reads_forbidden_to_cel_policies(api: FakeApi, apply: Any) -> None:
    put_pods(api, 5)
    path = "/api/v1/namespaces/apps/configmaps/settings"
    api.fault(f"GET {path}", 403)
    done = apply("", "-p", policy=IN_CEL)
    assert "failed to get resource: permission denied: " in done.out
    text = IN_CEL.replace("'settings'", "'../../secrets'")
    done = apply("", "-p", policy=text)
    assert "is not a name" in " ".join(done.out.split())
    assert not api.count("GET .*secrets")


def test_policy_with_bindings_uses_its_constraints_with_a_cluster(
    api: FakeApi, apply: Any
) -> None:
    """Without a cluster, only its bindings define its scope (docs/behaviour/cli 21)."""
    put_pods(api, 2)
    api.put("/api/v1/namespaces/apps/configmaps/settings", data={"most": "9"})
    policy = f"{PARAMS}---{POLICY.replace('KINDS', 'ConfigMap')}"
    assert apply("", policy=policy).out.endswith(summary(2, 1))


def test_without_any_cluster(
    command: Command, monkeypatch: pytest.MonkeyPatch, policy_file: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for arguments in (("apply", policy_file, "--cluster"), ("migrate", "--resource=x")):
        done = command(*arguments)
        assert done.code != 0
        assert "no kubeconfig" in done.err


GENERATES = """
apiVersion: policies.kyverno.io/v1
kind: GeneratingPolicy
metadata: {name: g}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
  generate:
  - expression: >-
      generator.apply(object.metadata.namespace, [{"apiVersion": dyn("v1"),
      "kind": dyn("ConfigMap"), "metadata": dyn({"name": "made"})}])
"""
MUTATES = """
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: m}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{labels: {"made": "x"}}}'
"""


@pytest.mark.parametrize("policy", [GENERATES, MUTATES])
def test_every_cel_policy_gets_the_objects_of_the_cluster(
    api: FakeApi, apply: Any, policy: str
) -> None:
    """Otherwise, a policy that applies in the cluster would seem to do nothing."""
    put_pods(api, 2)
    done = apply("", policy=policy)
    assert "Applying 1 policy rule(s) to 2 resource(s)" in done.out
    assert "made" in done.out
