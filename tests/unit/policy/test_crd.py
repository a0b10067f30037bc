"""The CustomResourceDefinitions: equal to the code, structural, fit for users' objects.

A failure means: config/crds/ is stale, the API server would reject a definition, or it
would reject or truncate an object of Kyverno's users.
"""

import json
from pathlib import Path

import pytest

from kyverno_mp.policy.crd.generate import ALL_KINDS, definition, render
from kyverno_mp.policy.crd.kind import Kind
from kyverno_mp.values.jsonvalue import Json

ROOT = Path(__file__).resolve().parents[3]
CRDS = ROOT / "config" / "crds"
ANNOTATION_BYTES_MAX = 256 * 1024
"""K8S: total size of annotations; `kubectl apply` keeps the whole object in one."""

TYPES = {"object", "array", "string", "integer", "number", "boolean"}
NAMES = [f"{kind.plural}.{kind.group}" for kind in ALL_KINDS]
SCHEMAS = {
    (kind.kind, f"{kind.group}/{version['name']}"): version["schema"]["openAPIV3Schema"]
    for kind in ALL_KINDS
    for version in definition(kind)["spec"]["versions"]
}


def test_files_equal_the_code() -> None:
    """Run ``kyverno-mp crds --output config/crds`` if this fails."""
    written = {path.name: path.read_text() for path in CRDS.glob("*.yaml")}
    assert written == render()


def test_every_kind_has_one_definition() -> None:
    assert len(set(NAMES)) == len(NAMES) == 24


@pytest.mark.parametrize("kind", ALL_KINDS, ids=NAMES)
def test_definition_fits_the_api(kind: Kind) -> None:
    made = definition(kind)
    versions = made["spec"]["versions"]
    assert sum(version["storage"] for version in versions) == 1
    assert len(json.dumps(made, separators=(",", ":"))) < ANNOTATION_BYTES_MAX
    for version in versions:
        _assert_structural(version["schema"]["openAPIV3Schema"], made)


def _assert_structural(schema: Json, path: Json) -> None:
    is_free = schema.get("x-kubernetes-preserve-unknown-fields") is True
    assert schema.get("type") in TYPES or is_free, (path, schema)
    assert not ("properties" in schema and "additionalProperties" in schema)
    properties = schema.get("properties", {})
    assert set(schema.get("required", ())) <= set(properties)
    for child in properties.values():
        _assert_structural(child, path)
    for name in ("items", "additionalProperties"):
        if name in schema:
            _assert_structural(schema[name], path)
    if schema.get("x-kubernetes-list-type") == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        assert set(keys) <= set(schema["items"]["required"])


def test_a_default_is_declared_where_kubernetes_stores_one() -> None:
    spec = SCHEMAS["ClusterPolicy", "kyverno.io/v1"]["properties"]["spec"]["properties"]
    stored = {name: one["default"] for name, one in spec.items() if "default" in one}
    assert stored == {
        "admission": True,
        "background": True,
        "emitWarning": False,
        "validationFailureAction": "Audit",
    }


def test_values_are_listed_in_the_order_of_the_documents() -> None:
    """The API server's message names them in this order."""
    spec = SCHEMAS["ClusterPolicy", "kyverno.io/v1"]["properties"]["spec"]["properties"]
    assert spec["failurePolicy"]["enum"] == ["Ignore", "Fail"]
