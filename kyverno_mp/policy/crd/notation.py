"""Define a short notation for structural schemas.

Room: policy. Takes: field names, with ``*`` after required fields. Gives: OpenAPI v3
schemas for the API server. Next: the declarations in this folder.
Source: Kubernetes "Specifying a structural schema"; the notation of
docs/behaviour/controllers 1.2 (``name*`` is required).
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.values.jsonvalue import Json

Schema = Mapping[str, Json]
Fields = Mapping[str, Schema]

TEXT: Final[Schema] = {"type": "string"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
INT32: Final[Schema] = {"type": "integer", "format": "int32"}
INT64: Final[Schema] = {"type": "integer", "format": "int64"}
FREE: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
"""Any JSON value, stored unchanged."""
FREE_OBJECT: Final[Schema] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
}
TEXT_MAP: Final[Schema] = {"type": "object", "additionalProperties": TEXT}


def record(fields: Fields, **extra: Json) -> Schema:
    """Return the schema of an object: ``record({"name*": TEXT, "kind": TEXT})``."""
    schema: dict[str, Json] = {"type": "object"}
    if fields:
        schema["properties"] = {
            name.removesuffix("*"): field for name, field in fields.items()
        }
    required = sorted(name[:-1] for name in fields if name.endswith("*"))
    if required:
        schema["required"] = required
    return {**schema, **extra}


def atomic(schema: Schema) -> Schema:
    """Mark an object or a list as atomic: server-side apply replaces all of it."""
    mark = "list" if schema["type"] == "array" else "map"
    return {**schema, f"x-kubernetes-{mark}-type": "atomic"}


def items(item: Schema, **extra: Json) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, **extra}


def named(item: Schema) -> Schema:
    """Return the schema of a list whose items are identified by ``name``."""
    return items(
        item,
        **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


def choice(*values: str) -> Schema:
    """Return the schema of an enum of strings."""
    return {"type": "string", "enum": list(values)}


def default(value: Json, schema: Schema) -> Schema:
    """Add the default that the API server writes for an absent value."""
    return {**schema, "default": value}


def one_of(*names: str) -> Json:
    """Return a ``oneOf`` that requires exactly one of the fields."""
    return [{"required": [name]} for name in names]


TEXTS: Final = items(TEXT)
ATOMIC_TEXTS: Final = atomic(TEXTS)
SELECTOR: Final = atomic(
    record(
        {
            "matchLabels": TEXT_MAP,
            "matchExpressions": atomic(
                items(record({"key*": TEXT, "operator*": TEXT, "values": ATOMIC_TEXTS}))
            ),
        }
    )
)
EXPRESSION: Final = record({"name*": TEXT, "expression*": TEXT})
OBJECT_REFERENCE: Final = atomic(
    record(
        dict.fromkeys(
            (
                "apiVersion",
                "kind",
                "namespace",
                "name",
                "uid",
                "resourceVersion",
                "fieldPath",
            ),
            TEXT,
        )
    )
)
_LABEL_VALUE: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
CONDITION: Final = record(
    {
        "type*": {
            **TEXT,
            "maxLength": 316,
            "pattern": rf"^({_DNS_LABEL}(\.{_DNS_LABEL})*/)?({_LABEL_VALUE})$",
        },
        "status*": choice("True", "False", "Unknown"),
        "observedGeneration": {**INT64, "minimum": 0},
        "lastTransitionTime*": TIME,
        "reason*": {
            **TEXT,
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "message*": {**TEXT, "maxLength": 32768},
    }
)
"""``metav1.Condition``."""
