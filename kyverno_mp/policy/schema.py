"""Hold a document of policies.kyverno.io against the schema of its definition.

Room: policy. Takes: raw documents. Gives: Problems. Next: the CLI (apply, test, lint).
May touch: nothing outside its arguments.
Source: apiextensions/v1 (structural schemas); spec/controllers.md 1.7; spec/cli.md 4.

These kinds are read, not evaluated: their shape is all that can be told of them.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import re2

from kyverno_mp.policy.crd.cel_kinds import CEL_KINDS
from kyverno_mp.policy.crd.notation import record
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

_GROUP: Final = "policies.kyverno.io"
_HEAD: Final = ("apiVersion", "kind", "metadata")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_NAMES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
UNKNOWN_FIELD: Final = "policy.unknown_field"
UNKNOWN_KIND: Final = "policy.unknown_kind"
Schema = Mapping[str, Json]


def is_cel_kind(raw: Json) -> bool:
    """Tell whether the document is of the group, whatever its kind."""
    return type(raw) is dict and str(raw.get("apiVersion", "")).startswith(f"{_GROUP}/")


def schema_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    """Return what the API server would not take of a document of the group."""
    api, kind = str(raw.get("apiVersion", "")), str(raw.get("kind", ""))
    schema = _schema(api.partition("/")[2], kind)
    if schema is None:
        text = f"policy type not supported {api} {kind}"
        return (Problem(UNKNOWN_KIND, "kind", "", text),)
    body = {name: item for name, item in raw.items() if name not in _HEAD}
    try:
        return tuple(_problems(body, schema, ""))
    except RecursionError:
        reason = "records are nested too deeply"
        return (Problem("policy.too_deep", "", "", reason),)


@cache
def _schema(version: str, kind: str) -> Schema | None:
    for known in CEL_KINDS:
        for one in known.versions:
            if (known.kind, one.name) == (kind, version):
                schema: Schema = record(dict(one.fields))
                return schema
    return None


def _problems(value: Json, schema: Schema, path: str) -> Iterator[Problem]:
    wanted = schema.get("type")
    if wanted is not None and type(value) not in _TYPES[wanted]:
        got = _NAMES.get(type(value), "null")
        yield Problem("policy.type", path, "", f"must be of type {wanted}, got {got}")
        return
    if type(value) is dict:
        yield from _of_map(value, schema, path)
    elif type(value) is list:
        items = schema.get("items") or {}
        for index, item in enumerate(value):
            yield from _problems(item, items, f"{path}[{index}]")
    yield from _bounds(value, schema, path)


def _of_map(value: dict[str, Json], schema: Schema, path: str) -> Iterator[Problem]:
    # K8S: a null is a field that is not there.
    given = {name: item for name, item in value.items() if item is not None}
    for name in schema.get("required") or ():
        if name not in given:
            yield Problem("policy.required", _child(path, name), "", "is required")
    known = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    is_open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for name, item in given.items():
        place = _child(path, name)
        if name in known:
            yield from _problems(item, known[name], place)
        elif type(others) is dict:
            yield from _problems(item, others, place)
        elif known and not is_open:
            yield Problem(UNKNOWN_FIELD, place, "", f'unknown field "{name}"')
    one_of = schema.get("oneOf")
    if one_of and sum(not any(_problems(value, part, path)) for part in one_of) != 1:
        names = [name for part in one_of for name in part.get("required") or ()]
        text = f"exactly one of {', '.join(names)} must be given"
        yield Problem("policy.one_of", path, "", text)


def _bounds(value: Json, schema: Schema, path: str) -> Iterator[Problem]:
    def fault(text: str) -> Problem:
        return Problem("policy.value", path, "", text)

    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{one}"' for one in schema["enum"])
        yield fault(f"must be one of {allowed}")
    if type(value) is int and "minimum" in schema and value < schema["minimum"]:
        yield fault(f"must be at least {schema['minimum']}")
    if type(value) is int and "maximum" in schema and value > schema["maximum"]:
        yield fault(f"must be at most {schema['maximum']}")
    if type(value) is list and len(value) < schema.get("minItems", 0):
        yield fault(f"must have at least {schema['minItems']} items")
    if type(value) is str:
        if len(value) < schema.get("minLength", 0):
            yield fault(f"must have at least {schema['minLength']} characters")
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            yield fault(f"must have at most {schema['maxLength']} characters")
        if "pattern" in schema and not re2.search(schema["pattern"], value):
            yield fault(f"must match {schema['pattern']}")


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
