"""Types of custom kinds: merges like the API server's with structural schemas.

Expected: kube-openapi schemaconv and structured-merge-diff, which the API server uses.
A failure means: a MutatingPolicy loses elements of a list, or makes a change that the
API server would reject.
"""

import json
from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed, RequestInvalid
from kyverno_mp.values.kubernetes.openapi import read_schemas
from kyverno_mp.values.typed.custom import types_of, types_of_definitions
from kyverno_mp.values.typed.merge import Merger
from kyverno_mp.values.typed.schema import Schemas

Json = Any
API, KIND = "example.org/v1", "Widget"
TEXT = {"type": "string"}
ENTRY = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "port": {"type": "integer"},
        "protocol": {"type": "string", "default": "TCP"},
    },
}


def array(items: Json = None, kind: str = "", *keys: str) -> Json:
    found: Json = {"type": "array", "items": items or TEXT}
    if kind:
        found["x-kubernetes-list-type"] = kind
    if keys:
        found["x-kubernetes-list-map-keys"] = list(keys)
    return found


SPEC = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "limit": {"x-kubernetes-int-or-string": True},
        "plain": array(),
        "atomic": array(TEXT, "atomic"),
        "set": array(TEXT, "set"),
        "ports": array(ENTRY, "map", "port", "protocol"),
        "entries": array(ENTRY, "map", "name"),
        "labels": {"type": "object", "additionalProperties": TEXT},
        "selector": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"a": TEXT, "b": TEXT},
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def definition(spec: Json = SPEC) -> Json:
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    names = {"kind": KIND, "plural": "widgets"}
    return {"spec": {"group": "example.org", "names": names, "versions": [version]}}


def published(spec: Json = SPEC) -> bytes:
    """Return the API server's document for the same kind."""
    prefix = "io.k8s.apimachinery.pkg.apis.meta.v1"
    meta = {
        "type": "object",
        "properties": {
            "name": TEXT,
            "labels": {"type": "object", "additionalProperties": TEXT},
            "finalizers": array(TEXT, "set"),
        },
    }
    widget = {
        "type": "object",
        "properties": {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": {
                "allOf": [{"$ref": f"#/components/schemas/{prefix}.ObjectMeta"}]
            },
            "spec": spec,
        },
        "x-kubernetes-group-version-kind": [
            {"group": "example.org", "version": "v1", "kind": KIND}
        ],
    }
    models = {f"{prefix}.ObjectMeta": meta, "org.example.v1.Widget": widget}
    return json.dumps({"components": {"schemas": models}}).encode()


@pytest.fixture(params=["definition", "document"])
def schemas(request: pytest.FixtureRequest) -> Schemas:
    """Return the types, read in both ways."""
    if request.param == "definition":
        return types_of_definitions([definition()])
    return types_of(read_schemas(published()), API, KIND)


def merged(schemas: Schemas, spec: Json, patch: Json, **more: Any) -> Json:
    head = {"apiVersion": API, "kind": KIND}
    merger = Merger(schemas, schemas.kinds[API, KIND])
    found: Json = merger.merge({**head, "spec": spec}, {**head, "spec": patch}, **more)
    return found["spec"]


@pytest.mark.parametrize(
    ("spec", "patch", "wanted"),
    [
        ({"size": 1}, {"limit": "5%"}, {"size": 1, "limit": "5%"}),
        ({"set": ["a", "b"]}, {"set": ["b", "c"]}, {"set": ["a", "b", "c"]}),
        (
            {"entries": [{"name": "a", "port": 1}, {"name": "b"}]},
            {"entries": [{"name": "a", "port": 2}, {"name": "c"}]},
            {"entries": [{"name": "a", "port": 2}, {"name": "b"}, {"name": "c"}]},
        ),
        (
            # The protocol has a default, which is part of the key.
            {"ports": [{"port": 1, "name": "x"}]},
            {"ports": [{"port": 1, "protocol": "TCP", "name": "y"}]},
            {"ports": [{"port": 1, "name": "y", "protocol": "TCP"}]},
        ),
        (
            {"labels": {"a": "1"}},
            {"labels": {"b": "2"}},
            {"labels": {"a": "1", "b": "2"}},
        ),
        (
            {"free": {"x": {"y": 1}, "z": 2}},
            {"free": {"x": {"w": 3}}},
            {"free": {"x": {"y": 1, "w": 3}, "z": 2}},
        ),
    ],
)
def test_merges(schemas: Schemas, spec: Json, patch: Json, wanted: Json) -> None:
    assert merged(schemas, spec, patch) == wanted


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"plain": ["a"]}, ".spec.plain"),
        ({"atomic": ["a"]}, ".spec.atomic"),
        ({"selector": {"a": "x"}}, ".spec.selector"),
    ],
)
def test_atomic_values(schemas: Schemas, patch: Json, path: str) -> None:
    """Changes are rejected unless the policy applies server-side (1.19)."""
    with pytest.raises(ExpressionFailed, match="may not mutate atomic") as caught:
        merged(schemas, {}, patch)
    assert caught.value.message.endswith(path)
    live = {"plain": ["z"], "atomic": ["z"], "selector": {"b": "z"}}
    found = merged(schemas, live, patch, replaces_atomics=True)
    assert found == {**live, **patch}


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"unknown": 1}, ".spec.unknown: field not declared in schema"),
        ({"size": "x"}, ".spec.size: expected numeric"),
        ({"set": [{}]}, "associative list without keys has an element that's a map"),
        ({"entries": [{"port": 1}]}, "omits all key fields"),
        ({"entries": [{"name": "a"}, {"name": "a"}]}, "duplicate entries for key"),
    ],
)
def test_objects_rejected_by_the_api_server(
    schemas: Schemas, patch: Json, text: str
) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        merged(schemas, {}, patch)
    assert text in caught.value.message


def test_metadata_has_the_common_types(schemas: Schemas) -> None:
    head = {"apiVersion": API, "kind": KIND}
    live = {**head, "metadata": {"name": "w", "finalizers": ["a"]}}
    patch = {**head, "metadata": {"finalizers": ["b"], "labels": {"x": "y"}}}
    found = Merger(schemas, schemas.kinds[API, KIND]).merge(live, patch)
    assert found["metadata"] == {
        "name": "w",
        "finalizers": ["a", "b"],
        "labels": {"x": "y"},
    }


def test_recursive_kind() -> None:
    """A schema may refer to itself: reading it must end."""
    ref = {"$ref": "#/components/schemas/org.example.v1.Node"}
    tree = {
        "org.example.v1.Node": {
            "type": "object",
            "properties": {"children": array(ref, "map", "name"), "name": TEXT},
        },
    }
    document = json.loads(published({"type": "object", "properties": {"root": ref}}))
    document["components"]["schemas"] |= tree
    found = types_of(read_schemas(json.dumps(document).encode()), API, KIND)
    live = {"root": {"children": [{"name": "a", "children": [{"name": "b"}]}]}}
    patch = {"root": {"children": [{"name": "a", "children": [{"name": "c"}]}]}}
    assert merged(found, live, patch) == {
        "root": {
            "children": [{"name": "a", "children": [{"name": "b"}, {"name": "c"}]}]
        }
    }


def test_schema_nested_too_deeply() -> None:
    """Otherwise its author could crash a worker."""
    spec: Json = TEXT
    for _ in range(2000):
        spec = {"type": "object", "properties": {"a": spec}}
    with pytest.raises((RequestInvalid, RecursionError)):
        types_of_definitions([definition(spec)])


def test_kind_missing_in_the_document() -> None:
    found = types_of(read_schemas(published()), API, "Gadget")
    assert (API, "Gadget") not in found.kinds
