"""Test types of OpenAPI schemas, beyond the recorded results of the type checker.

A failure means: a broken, cyclic or very deep schema causes a wrong warning, or aborts
the review.
"""

import pytest

from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.schema_types import SchemaRecords, escape
from kyverno_mp.expr.cel.types import Type
from kyverno_mp.limits import SCHEMA_NESTING_MAX
from kyverno_mp.values.kubernetes.openapi import Schema, read_schemas

TEXT = Schema(type="string")


def field_of(schema: Schema, *names: str, **others: Schema) -> Type | None:
    """Return the type of ``root.x.y``."""
    records = SchemaRecords()
    found = records.declare({"root": schema, **others}, "root", "Kind")
    for name in names:
        assert found is not None
        fields = records.get(found.name)
        assert fields is not None
        found = fields.get(name)
    return found


def of(**properties: Schema) -> Schema:
    return Schema(type="object", properties=properties)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("plain", "plain"),
        ("a-b", "a__dash__b"),
        ("a.b/c", "a__dot__b__slash__c"),
        ("a__b", "a__underscores__b"),
        ("a_b", "a_b"),
        ("namespace", "__namespace__"),
        ("true", "__true__"),
        ("7up", ""),
        ("a b", ""),
        ("", ""),
    ],
)
def test_property_names_in_cel(name: str, wanted: str) -> None:
    """K8S: pkg/cel/escaping.go."""
    assert escape(name) == wanted
    if wanted:
        assert field_of(of(**{name: TEXT}), wanted) == types.STRING
    if wanted != name and name not in ("namespace", "true"):
        assert field_of(of(**{name: TEXT}), name) is None


def test_fields_of_every_resource() -> None:
    assert field_of(of(), "kind") == types.STRING
    assert field_of(of(), "metadata", "generateName") == types.STRING
    assert field_of(of(), "metadata", "labels") is None
    meta = of(name=TEXT, generateName=TEXT, labels=of())
    whole = of(kind=TEXT, apiVersion=TEXT, metadata=meta)
    assert field_of(whole, "metadata", "labels") is not None
    # A custom field ``metadata`` without the two names is not the object's metadata.
    half = of(kind=TEXT, apiVersion=TEXT, metadata=of(labels=of()))
    assert field_of(half, "metadata", "labels") is None


def test_missing_reference_causes_no_error() -> None:
    lost = Schema(ref="#/components/schemas/lost")
    assert field_of(of(x=lost), "x") == types.DYN


def test_cyclic_references_terminate() -> None:
    """K8S: the second occurrence is an object without fields."""
    again = Schema(ref="#/components/schemas/again")
    schema = of(x=again)
    deep = ("x", *["next"] * 2)
    found = field_of(schema, *deep[:2], again=of(value=TEXT, next=again))
    assert found is not None
    assert found.kind == "object"
    assert field_of(schema, "x", "value", again=of(value=TEXT, next=again))
    assert (
        field_of(schema, *deep[:2], "value", again=of(value=TEXT, next=again)) is None
    )


def test_endlessly_nested_lists_become_dynamic() -> None:
    schema = TEXT
    for _ in range(SCHEMA_NESTING_MAX * 3):
        schema = Schema(type="array", items=schema)
    found = field_of(of(x=schema), "x")
    levels = 0
    while found is not None and found.name == "list":
        found, levels = found.params[0], levels + 1
    assert found == types.DYN
    assert levels <= SCHEMA_NESTING_MAX + 1


def test_only_requested_types_are_built() -> None:
    """A schema with expanded references would have no size limit."""
    layers = 40
    document = {
        f"l{level}": of(
            a=Schema(ref=f"#/components/schemas/l{level + 1}"),
            b=Schema(ref=f"#/components/schemas/l{level + 1}"),
        )
        for level in range(layers)
    }
    document[f"l{layers}"] = of(end=TEXT)
    root = Schema(ref="#/components/schemas/l0")
    assert field_of(root, *"ab" * (layers // 2), "end", **document) == types.STRING


def test_unknown_parts_of_documents_are_ignored() -> None:
    body = b"""{"openapi": "3.0.0", "paths": {"/x": {"get": 1}}, "components": {
        "schemas": {"A": {"type": "object", "description": "d", "default": {},
          "additionalProperties": {"type": "string"}, "enum": [1], "nullable": true}},
        "securitySchemes": {}}}"""
    (schema,) = read_schemas(body).values()
    assert schema.additional == TEXT
