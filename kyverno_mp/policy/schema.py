"""Validate a document against the schema of its CRD, like the API server.

Room: policy. Takes: raw documents. Gives: Problems. Next: the CLI (apply, test, lint).
Source: apiextensions/v1 (structural schemas); docs/behaviour/controllers 1.7;
docs/behaviour/cli 4.

Kinds of policies.kyverno.io are checked only for structure here. For other kinds, the
result separates documents that are ignored from documents that are checked and skipped.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import re2

from kyverno_mp.policy.crd.kind import Kind
from kyverno_mp.policy.crd.notation import record
from kyverno_mp.policy.documents.cluster_policy import Spec
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.go.gotime_parse import is_time
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY

_GROUP: Final = "policies.kyverno.io"
_KYVERNO: Final = "kyverno.io/"
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
    """Return whether the document has any kind of the group policies.kyverno.io."""
    return type(raw) is dict and str(raw.get("apiVersion", "")).startswith(f"{_GROUP}/")


def schema_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    """Return the API server's reasons to reject a document of the group."""
    api, kind = str(raw.get("apiVersion", "")), str(raw.get("kind", ""))
    schema = _schema(api.partition("/")[2], kind)
    if schema is None:
        message = f"policy type not supported {api} {kind}"
        return (Problem(UNKNOWN_KIND, "kind", "", message),)
    body = {name: item for name, item in raw.items() if name not in _HEAD}
    try:
        return tuple(_problems(body, schema, ""))
    except RecursionError:
        reason = "records are nested too deeply"
        return (Problem("policy.too_deep", "", "", reason),)


def status_problems(kind: str, status: Json) -> tuple[Problem, ...]:
    """Return the API server's reasons to reject the status of a policy."""
    from kyverno_mp.policy.crd import status as written  # rarely needed

    if kind == "ValidatingAdmissionPolicy":
        schema = written.ADMISSION
    elif kind in CLEANUP_POLICY.names:
        schema = written.CLEANUP
    else:
        schema = written.policy()
    return tuple(_problems(status, schema, "status"))


def beta_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    """Return the API server's reasons to reject a v2beta1 policy."""
    return tuple(_problems(raw.get("spec"), _beta(), "spec"))


@cache
def _beta() -> Schema:
    from kyverno_mp.policy.crd.beta import BETA
    from kyverno_mp.policy.crd.declared import derive

    return derive(Spec, BETA)


@cache
def _schema(version: str, kind: str) -> Schema | None:
    from kyverno_mp.policy.crd.cel_kinds import CEL_KINDS  # rarely needed

    return _found(CEL_KINDS, version, kind)


@cache
def _kyverno_schema(version: str, kind: str) -> Schema | None:
    # Imported late: only runs that load policies need these schemas.
    from kyverno_mp.policy.crd.typed_kinds import KYVERNO_KINDS

    return _found(KYVERNO_KINDS, version, kind)


def _found(kinds: tuple[Kind, ...], version: str, kind: str) -> Schema | None:
    for candidate in kinds:
        for served in candidate.versions:
            if (candidate.kind, served.name) == (kind, version):
                schema: Schema = record(dict(served.all_fields()))
                return schema
    return None


def kyverno_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    """Return the API server's reasons to reject a kyverno.io document.

    Kinds without a definition, and ``metadata``, are not checked here.
    """
    version, kind = str(raw.get("apiVersion", "")), str(raw.get("kind", ""))
    schema = _kyverno_schema(version.partition("/")[2], kind)
    if schema is None or not version.startswith(_KYVERNO):
        return ()
    body = {name: item for name, item in raw.items() if name not in _HEAD}
    try:
        return tuple(_problems(body, schema, ""))
    except RecursionError:
        reason = "records are nested too deeply"
        return (Problem("policy.too_deep", "", "", reason),)


def _problems(value: Json, schema: Schema, path: str) -> Iterator[Problem]:
    expected = schema.get("type")
    if expected is not None and type(value) not in _TYPES[expected]:
        got = _NAMES.get(type(value), "null")
        yield Problem("policy.type", path, "", f"must be of type {expected}, got {got}")
        yield from _unknown_below(value, path)
        return
    if type(value) is dict:
        yield from _of_map(value, schema, path)
    elif type(value) is list:
        items = schema.get("items") or {}
        for index, item in enumerate(value):
            yield from _problems(item, items, f"{path}[{index}]")
        yield from duplicates(value, schema, path)
    yield from _bounds(value, schema, path)


def _of_map(value: dict[str, Json], schema: Schema, path: str) -> Iterator[Problem]:
    # K8S: a null is treated as absent.
    present = {name: item for name, item in value.items() if item is not None}
    for name in schema.get("required") or ():
        if name not in present:
            yield Problem("policy.required", _child(path, name), "", "is required")
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    is_open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for name, item in value.items():
        field_path = _child(path, name)
        if item is None and (name in properties or is_open or type(additional) is dict):
            continue
        if name in properties:
            yield from _problems(item, properties[name], field_path)
        elif type(additional) is dict:
            yield from _problems(item, additional, field_path)
        elif properties and not is_open:
            reason = f'unknown field "{name}"'
            yield Problem(
                UNKNOWN_FIELD, field_path, "", reason, known=tuple(properties)
            )
    refused = schema.get("not")
    if refused and not any(_problems(value, refused, path)):
        both = " and ".join(refused["required"])
        yield Problem("policy.not", path, "", f"{both} must not both be set")
    one_of = schema.get("oneOf")
    if one_of and sum(not any(_problems(value, part, path)) for part in one_of) != 1:
        names = [name for part in one_of for name in part.get("required") or ()]
        message = f"exactly one of {', '.join(names)} must be given"
        yield Problem("policy.one_of", path, "", message)


def duplicates(value: list[Json], schema: Schema, path: str) -> Iterator[Problem]:
    """Yield a problem for each item that repeats an earlier item's key.

    K8S: only lists with ``x-kubernetes-list-type`` map or set have keys.
    """
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if not keys and schema.get("x-kubernetes-list-type") != "set":
        return
    keys_before: set[str] = set()
    for index, item in enumerate(value):
        if keys and type(item) is not dict:
            continue  # Its type is already a problem.
        key_values = [item.get(name) for name in keys] if keys else item
        key = json.dumps(key_values, sort_keys=True)
        if key in keys_before:
            duplicate = ", ".join(map(str, key_values)) if keys else key
            message = f"duplicate value {duplicate}"
            yield Problem("policy.value", f"{path}[{index}]", "", message)
        keys_before.add(key)


def _unknown_below(value: Json, path: str) -> Iterator[Problem]:
    """Yield a problem for each field of a misplaced object; all are unknown."""
    if type(value) is dict:
        for name in value:
            message = f'unknown field "{name}"'
            yield Problem(UNKNOWN_FIELD, _child(path, name), "", message)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _unknown_below(item, f"{path}[{index}]")


def _bounds(value: Json, schema: Schema, path: str) -> Iterator[Problem]:
    def fault(message: str) -> Problem:
        return Problem("policy.value", path, "", message)

    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{allowed}"' for allowed in schema["enum"])
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
        if schema.get("format") == "date-time" and not is_time(value):
            yield fault("must be an RFC 3339 time")
        if "pattern" in schema and not re2.search(schema["pattern"], value):
            yield fault(f"must match {schema['pattern']}")


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
