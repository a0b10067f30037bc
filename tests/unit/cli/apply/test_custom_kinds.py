"""Objects of custom kinds beside every kind of policy that needs resource names.

A rendered chart with one custom resource must not stop the run, and a resource name
that a CustomResourceDefinition gives must reach every kind of policy.
"""

from pathlib import Path

import pytest
import yaml

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command, pod

_VALIDATIONS: Json = [{"expression": "object.metadata.name != 'bad'", "message": "m"}]
_PATCH: Json = [
    {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {
            "expression": 'Object{metadata: Object.metadata{labels: {"a": "b"}}}'
        },
    }
]
_GENERATE: Json = [
    {
        "expression": (
            'generator.Apply("default", [{"apiVersion": dyn("v1"), "kind":'
            ' dyn("ConfigMap"), "metadata": dyn({"name": object.metadata.name})}])'
        )
    }
]
SPECS: dict[str, dict[str, Json]] = {
    "ValidatingPolicy": {"validations": _VALIDATIONS},
    "MutatingPolicy": {"mutations": _PATCH},
    "GeneratingPolicy": {"generate": _GENERATE},
    "DeletingPolicy": {
        "schedule": "* * * * *",
        "conditions": [{"name": "c", "expression": "true"}],
    },
    "ImageValidatingPolicy": {
        "matchImageReferences": [{"glob": "*"}],
        "attestors": [{"name": "a", "cosign": {"key": {"data": "k"}}}],
        "validations": _VALIDATIONS,
    },
    "ValidatingAdmissionPolicy": {"validations": _VALIDATIONS},
    "MutatingAdmissionPolicy": {
        "mutations": _PATCH,
        "reinvocationPolicy": "Never",
        "failurePolicy": "Fail",
    },
}
DEFINITION = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgetry.x.org}
spec:
  group: x.org
  names: {kind: Gadget, plural: gadgetry}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer}}}}
"""
GADGET = "apiVersion: x.org/v1\nkind: Gadget\nmetadata: {name: g, namespace: default}\n"


def _policy(kind: str, group: str, resource: str) -> str:
    of_server = kind.endswith("AdmissionPolicy")
    api = "admissionregistration.k8s.io" if of_server else "policies.kyverno.io"
    rule: dict[str, Json] = {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": [resource],
    }
    if kind != "DeletingPolicy":
        rule["operations"] = ["CREATE"]
    spec = {"matchConstraints": {"resourceRules": [rule]}, **SPECS[kind]}
    head = {"apiVersion": f"{api}/v1", "kind": kind, "metadata": {"name": "p"}}
    if kind == "MutatingAdmissionPolicy":
        head["apiVersion"] = f"{api}/v1alpha1"
    documents: list[Json] = [{**head, "spec": spec}]
    if of_server:
        binding: dict[str, Json] = {
            "apiVersion": head["apiVersion"],
            "kind": f"{kind}Binding",
            "metadata": {"name": "b"},
            "spec": {"policyName": "p"},
        }
        if kind == "ValidatingAdmissionPolicy":
            binding["spec"]["validationActions"] = ["Deny"]
        documents.append(binding)
    return yaml.safe_dump_all(documents)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "chart.yaml").write_text(GADGET + pod("good"))
    (tmp_path / "gadget.yaml").write_text(GADGET)
    (tmp_path / "crd.yaml").write_text(DEFINITION)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "resource"),
    [("apps", "deployments"), ("*", "secrets"), ("x.org", "gadgetry/status")],
)
@pytest.mark.parametrize("kind", SPECS)
def test_an_object_that_no_rule_can_match_needs_no_resource_name(
    command: Command, files: Path, kind: str, group: str, resource: str
) -> None:
    """A secret is no Gadget, whatever the Gadgets' resource name is."""
    (files / "policy.yaml").write_text(_policy(kind, group, resource))
    paths = ("apply", files / "policy.yaml", "-r", files / "chart.yaml")
    unknown = command(*paths)
    assert "gvk" not in unknown.err
    (files / "other.yaml").write_text(
        "apiVersion: v1\nkind: List\nitems:\n- "
        + DEFINITION.replace("adget", "idget").replace("\n", "\n  ").rstrip()
    )
    names = f"{files}/other.yaml,{files}/crd.yaml"
    known = command(*paths, "--crd-paths", names)
    assert (unknown.code, unknown.out) == (known.code, known.out)
    assert "error: 0" in known.out


@pytest.mark.parametrize("group", ["x.org", "*"])
@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind != "ValidatingPolicy"])
def test_a_rule_that_may_match_asks_for_the_definition(
    command: Command, files: Path, kind: str, group: str
) -> None:
    """Without the resource name nobody can say whether the rule matches."""
    (files / "policy.yaml").write_text(_policy(kind, group, "gadgetry"))
    done = command("apply", files / "policy.yaml", "-r", files / "gadget.yaml")
    assert "failed to map gvk to gvr x.org/v1, Kind=Gadget" in done.err
    assert "--crd-path" in done.err
    assert done.code != 0


@pytest.mark.parametrize(
    "kind", [kind for kind in SPECS if kind != "ImageValidatingPolicy"]
)
def test_definitions_of_a_test_reach_every_kind(
    command: Command, files: Path, kind: str
) -> None:
    """``spec.crds`` of a ClusterResource file is what --crd-path is for apply."""
    (files / "policy.yaml").write_text(_policy(kind, "x.org", "gadgetry"))
    (files / "cluster.yaml").write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: ClusterResource\n"
        "metadata: {name: c}\nspec: {crds: [crd.yaml], resources: []}\n"
    )
    (files / "kyverno-test.yaml").write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
        "policies: [policy.yaml]\nresources: [gadget.yaml]\n"
        "clusterResources: [cluster.yaml]\n"
        "results: [{policy: p, kind: Gadget, resources: [g], result: pass}]\n"
    )
    done = command("test", files)
    assert "gvk" not in done.out + done.err
    assert "Checking results" in done.out


def test_a_test_merges_lists_of_a_custom_kind_by_its_definition(
    command: Command, tmp_path: Path
) -> None:
    """As the API server does for a list of type map: one entry for each key."""
    texts = {"name": {"type": "string"}, "size": {"type": "string"}}
    parts = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": texts},
    }
    spec = {"type": "object", "properties": {"parts": parts}}
    definition = yaml.safe_load(DEFINITION)
    (version,) = definition["spec"]["versions"]
    version["schema"] = {
        "openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}
    }
    expression = (
        'Object{spec: Object.spec{parts: [Object.spec.parts{name: "a", size: "2"}]}}'
    )
    policy = yaml.safe_load(_policy("MutatingPolicy", "x.org", "gadgetry"))
    policy["spec"]["mutations"][0]["applyConfiguration"]["expression"] = expression
    given = {
        "apiVersion": "x.org/v1",
        "kind": "Gadget",
        "metadata": {"name": "g", "namespace": "d"},
        "spec": {"parts": [{"name": name, "size": "1"} for name in "ab"]},
    }
    patched = {
        **given,
        "spec": {"parts": [{"name": "a", "size": "2"}, {"name": "b", "size": "1"}]},
    }
    result = {
        "policy": policy["metadata"]["name"],
        "isMutatingPolicy": True,
        "kind": "Gadget",
        "resources": ["g"],
        "result": "pass",
        "patchedResources": "patched.yaml",
    }
    documents = {
        "crd.yaml": definition,
        "policy.yaml": policy,
        "given.yaml": given,
        "patched.yaml": patched,
        "cluster.yaml": {
            "apiVersion": "cli.kyverno.io/v1alpha1",
            "kind": "ClusterResource",
            "metadata": {"name": "c"},
            "spec": {"crds": ["crd.yaml"], "resources": []},
        },
        "kyverno-test.yaml": {
            "apiVersion": "cli.kyverno.io/v1alpha1",
            "kind": "Test",
            "metadata": {"name": "t"},
            "policies": ["policy.yaml"],
            "resources": ["given.yaml"],
            "clusterResources": ["cluster.yaml"],
            "results": [result],
        },
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(yaml.safe_dump(document))
    done = command("test", tmp_path)
    assert (done.code, done.out.count("Pass")) == (0, 1), done.out + done.err
    (tmp_path / "patched.yaml").write_text(yaml.safe_dump(given))
    assert command("test", tmp_path).code == 1
