"""The CustomResourceDefinitions: equal to the code, structural, fit for users' objects.

A failure means: config/crds/ is stale, the API server would reject a definition, or it
would reject or truncate an object of Kyverno's users.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.policy.cel_kinds.served import decode_policy
from kyverno_mp.policy.crd.generate import ALL_KINDS, definition, render
from kyverno_mp.policy.crd.kind import Kind, Version
from kyverno_mp.policy.crd.notation import record
from kyverno_mp.policy.reading.decode import examine, is_known_kind
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

Steps = tuple[str, ...]
"""Names of fields, and ``[]`` for an item of a list."""
Default = tuple[Steps, Json, tuple[Json, ...]]
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
    others = 10
    assert len(set(NAMES)) == len(NAMES) == others + 2 * len(POLICY_KINDS)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=NAMES)
def test_definition_fits_the_api(kind: Kind) -> None:
    made = definition(kind)
    versions = made["spec"]["versions"]
    assert sum(version["storage"] for version in versions) == 1
    assert len(json.dumps(made, separators=(",", ":"))) < ANNOTATION_BYTES_MAX
    for version in versions:
        _assert_structural(version["schema"]["openAPIV3Schema"], made)


def test_no_version_of_the_older_generation_is_deprecated() -> None:
    """The API server would warn of them at each call; Kyverno does since 1.19.1."""
    kinds = {"ClusterPolicy", "Policy", "CleanupPolicy", "ClusterCleanupPolicy"}
    versions = [
        version
        for kind in ALL_KINDS
        if kind.kind in {*kinds, "PolicyException"} and kind.group == "kyverno.io"
        for version in definition(kind)["spec"]["versions"]
        if version["served"]
    ]
    assert len(versions) == 10
    assert not any(version.get("deprecated") for version in versions)


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


def test_no_item_of_a_list_has_a_default() -> None:
    """GitOps tools compare lists as a whole: such a policy would never be in sync."""
    stored = [
        path
        for key, schema in SCHEMAS.items()
        for path, _, _ in _defaults(schema, (*key,))
        if "[]" in path
    ]
    assert stored == []


def _defaults(schema: Json, path: Steps, *above: Json) -> Iterator[Default]:
    """Yield path, default and the schemas on the way of each default."""
    if "default" in schema:
        yield path, schema["default"], (*above, schema)
    for name, part in schema.get("properties", {}).items():
        yield from _defaults(part, (*path, name), *above, schema)
    if "items" in schema:
        yield from _defaults(schema["items"], (*path, "[]"), *above, schema)


LEFT_OUT = [
    (kind, version, default)
    for kind in ALL_KINDS
    for version in kind.versions
    for default in _defaults(record(version.all_fields()), ())
    for path in [default[0]]
    if "[]" in path and path[0] == "spec"
]
"""Each default that the documents have, and the definitions do not."""


def test_the_left_out_defaults_are_those_that_break_synchronization() -> None:
    """Kyverno's definitions have these defaults; policies without them are out of sync.

    The definitions of two kinds in two versions lack one that is not in v2beta1.
    """
    counts = Counter(f"{kind.kind}/{version.name}" for kind, version, _ in LEFT_OUT)
    assert counts["ClusterPolicy/v1"] == counts["Policy/v1"] == 18
    assert counts["ClusterPolicy/v2beta1"] == counts["Policy/v2beta1"] == 17
    assert counts["CleanupPolicy/v2"] == counts["ClusterCleanupPolicy/v2"] == 1
    assert counts["GeneratingPolicy/v1"] == counts["ImageValidatingPolicy/v1"] == 1


@pytest.mark.parametrize(
    ("kind", "version", "default"),
    LEFT_OUT,
    ids=[
        f"{kind.kind}-{version.name}-{'.'.join(d[0])}" for kind, version, d in LEFT_OUT
    ],
)
def test_an_absent_value_is_read_as_the_default(
    kind: Kind, version: Version, default: Default
) -> None:
    """The API server writes no value there, so the engine must not need one."""
    path, value, schemas = default
    api = f"{kind.group}/{version.name}"
    with_value = _document(kind.kind, api, path, schemas, value)
    without = _document(kind.kind, api, path, schemas)
    assert with_value != without
    decoded = _decoded(without)
    assert decoded is not None
    assert decoded == _decoded(with_value)


def _decoded(raw: dict[str, Json]) -> object:
    if is_known_kind(raw):
        return examine(raw).document
    return decode_policy(raw)


def _document(
    kind: str, api: str, path: Steps, schemas: tuple[Json, ...], *value: Json
) -> dict[str, Json]:
    """Build the smallest document with the object that has the value at a path."""
    raw = {"apiVersion": api, "kind": kind, "metadata": {"name": "a"}}
    return {**raw, **_at(path, schemas, value)}


def _at(path: Steps, schemas: tuple[Json, ...], value: tuple[Json, ...]) -> Json:
    if not path:
        return value[0]
    name, *rest = path
    if len(path) == 1 and not value:
        return _least(schemas[0])
    below = _at(tuple(rest), schemas[1:], value)
    return [below] if name == "[]" else {**_least(schemas[0]), name: below}


def _least(schema: Json) -> Json:
    """Return the smallest value of a schema."""
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {key: _least(properties[key]) for key in schema.get("required", ())}
        case "array":
            return []
        case "string":
            return schema.get("enum", ["a"])[0]
        case "integer" | "number":
            return 1
        case "boolean":
            return False
        case _:
            return {}
