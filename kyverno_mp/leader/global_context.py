"""Work out the values of GlobalContextEntries from given objects and answers.

Room: leader. Takes: a raw entry, API answers. Gives: values by entry and by
``<entry>.<projection>``. Next: leader/world.py.
May touch: the clock, for JMESPath functions that ask for it.
Source: spec/controllers.md 1.5, 11.1-11.4.
"""

import time
from datetime import UTC, datetime

from kyverno_mp.errors import Error, InputError
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.leader.objects import base_path
from kyverno_mp.policy.decode import decode
from kyverno_mp.policy.global_context_entry import (
    GlobalContextEntry,
    KubernetesResource,
)
from kyverno_mp.values.jsonvalue import Json

_Values = dict[str, Json]


def entry_values(raw: dict[str, Json], answers: _Values) -> _Values:
    """Return the entry's data and each projection, as {"data": ..} or {"error": ..}."""
    name = str((raw.get("metadata") or {}).get("name", ""))
    try:
        entry = decode(raw)
    except InputError as error:
        return {name: {"error": error.message}}
    if not isinstance(entry, GlobalContextEntry):
        return {}
    value = _source(entry, answers)
    found = {name: value}
    for projection in entry.spec.projections:
        key = f"{name}.{projection.name}"
        found[key] = value
        if "error" not in value:
            found[key] = _project(projection.jmes_path, value["data"])
    return found


def _source(entry: GlobalContextEntry, answers: _Values) -> dict[str, Json]:
    spec = entry.spec
    if spec.kubernetes_resource is not None:
        listing = answers.get(f"GET {_path(spec.kubernetes_resource)}")
        return {"data": listing["data"]["items"] if listing else []}
    if spec.api_call is not None:
        call = spec.api_call
        target = call.url_path or (call.service.url if call.service else "")
        key = f"{call.method} {target}"
        answer: dict[str, Json] = answers.get(key) or {"error": f"{key}: not given"}
        return answer
    return {"error": "entry has neither kubernetesResource nor apiCall"}


def _path(resource: KubernetesResource) -> str:
    group, version = resource.group, resource.version
    base = base_path(f"{group}/{version}" if group else version)
    middle = f"/namespaces/{resource.namespace}" if resource.namespace else ""
    return f"{base}{middle}/{resource.resource}"


def _project(query: str, data: Json) -> dict[str, Json]:
    runtime = Runtime(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
    try:
        return {"data": search(query)(runtime, data)}
    except Error as error:
        return {"error": error.message}
