"""Compute the values of GlobalContextEntries: the data and each projection.

Room: leader. Takes: an entry, its data as JSON. Gives: values by ``<entry>`` and by
snapshot/data.projection_key, with "" for every other projection; the keys of
snapshot/data.opened_key for the namespaces whose policies may read the entry.
Next: leader/cluster_data.py (canned answers), leader/context/sources.py (a
cluster).
May touch: the clock, for JMESPath functions that use it.
Source: docs/behaviour/controllers 1.5, 11.1-11.4; Kyverno pkg/globalcontext.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from kyverno_mp.errors import Error, InputError
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.leader.objects import base_path
from kyverno_mp.policy.documents.global_context_entry import (
    GlobalContextEntry,
    KubernetesResource,
    Projection,
    opened_to,
)
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.snapshot.data import opened_key, projection_key
from kyverno_mp.values.jsonvalue import Json

_Values = dict[str, Json]
NO_DATA: Final = "no data available"
_PROJECTING_NS_MAX: Final = 10 * 10**9


def failed_values(name: str, message: str) -> dict[str, bytes]:
    """Return the values of an entry without data, for which every read fails."""
    error = msgspec.json.encode({"error": message})
    return {name: error, projection_key(name, ""): error}


def opened_values(entry: GlobalContextEntry) -> dict[str, bytes]:
    """Return a value for each namespace whose policies may read the entry."""
    name, annotations = entry.metadata.name, entry.metadata.annotations
    return {
        opened_key(name, namespace): b"true" for namespace in opened_to(annotations)
    }


def call_values(
    name: str, body: bytes, projections: Sequence[Projection]
) -> dict[str, bytes]:
    """Return the values of an apiCall's response.

    Raises: Error if it is not JSON or a projection fails; then nothing can be read.
    """
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("leader.global_context", "the answer is not JSON") from error
    # KYVERNO: null counts as absent (pkg/globalcontext/externalapi).
    values = failed_values(name, NO_DATA)
    if data is not None:
        values[name] = b'{"data":%b}' % body
    for projection in projections:
        projected = _projected(projection.jmes_path, data, ints_are_numbers=True)
        if projected is not None:
            values[projection_key(name, projection.name)] = msgspec.json.encode(
                {"data": projected}
            )
    return values


def resource_values(
    name: str, body: bytes, projections: Sequence[Projection]
) -> tuple[dict[str, bytes], str]:
    """Return the values of a list of objects, and the error of a projection, if any.

    KYVERNO: a failed projection counts as undeclared, and integers in objects are not
    numbers in JMESPath (pkg/globalcontext/k8sresource).
    """
    values = {name: b'{"data":%b}' % body}
    problem = ""
    data = msgspec.json.decode(body) if projections else None
    for projection in projections:
        try:
            projected = _projected(projection.jmes_path, data, ints_are_numbers=False)
        except Error as error:
            problem = f'failed to apply projection "{projection.name}": {error.message}'
            continue
        values[projection_key(name, projection.name)] = msgspec.json.encode(
            {"data": projected}
        )
    return values, problem


def entry_values(raw: dict[str, Json], answers: _Values) -> _Values:
    """Return an entry's values from canned responses instead of the API server's."""
    name = str((raw.get("metadata") or {}).get("name", ""))
    try:
        entry = decode(raw)
    except InputError as error:
        return {name: {"error": error.message}}
    if not isinstance(entry, GlobalContextEntry):
        return {}
    opened: _Values = dict.fromkeys(opened_values(entry), True)
    value = _source(entry, answers)
    if "error" in value:
        return {name: value, projection_key(name, ""): value, **opened}
    body, projections = msgspec.json.encode(value["data"]), entry.spec.projections
    try:
        if entry.spec.api_call is not None:
            values = call_values(name, body, projections)
        else:
            values, _ = resource_values(name, body, projections)
    except Error as error:
        values = failed_values(name, error.message)
    decoded = {key: msgspec.json.decode(value) for key, value in values.items()}
    return decoded | opened


def _source(entry: GlobalContextEntry, answers: _Values) -> dict[str, Json]:
    spec = entry.spec
    if spec.kubernetes_resource is not None:
        listing = answers.get(f"GET {list_path(spec.kubernetes_resource)}")
        return {"data": listing["data"]["items"] if listing else []}
    if spec.api_call is not None:
        call = spec.api_call
        target = call.url_path or (call.service.url if call.service else "")
        key = f"{call.method} {target}"
        answer: dict[str, Json] = answers.get(key) or {"error": f"{key}: not given"}
        return answer
    return {"error": "entry has neither kubernetesResource nor apiCall"}


def list_path(resource: KubernetesResource) -> str:
    """Return the path of the list with an entry's objects."""
    group, version = resource.group, resource.version
    base = base_path(f"{group}/{version}" if group else version)
    middle = f"/namespaces/{resource.namespace}" if resource.namespace else ""
    return f"{base}{middle}/{resource.resource}"


def _projected(query: str, data: Json, *, ints_are_numbers: bool) -> Json:
    """Apply one projection. Raises: Error."""
    runtime = Runtime(
        now=lambda: datetime.now(UTC),
        monotonic_ns=time.monotonic_ns,
        ints_are_numbers=ints_are_numbers,
        deadline_ns=time.monotonic_ns() + _PROJECTING_NS_MAX,
    )
    return search(query)(runtime, data)
