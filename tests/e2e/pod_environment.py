"""Resolve what a container gets: its environment, its command.

Takes: a pod and a container as the API server has them, a connection. Gives: plain
texts. May touch: ConfigMaps and Secrets, by reading them.
Source: k8s.io/api core/v1 EnvVar; kubelet makeEnvironmentVariables, ExpandContainer.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from tests.e2e.api import Api, Refused

_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z0-9_.-]+)\))")
_MAP_FIELD: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
Object = Mapping[str, Any]


class CannotStart(Exception):
    """A kubelet would not start the container; the text is the reason."""


def resolve_environment(
    pod: Object, container: Object, address: str, api: Api
) -> dict[str, str]:
    """Return the environment of the manifest, in order."""
    namespace = pod["metadata"]["namespace"]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        for kind, name in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
            if name in source:
                data = _data(api, namespace, kind, source[name])
                found |= {prefix + key: value for key, value in data.items()}
    for one in container.get("env") or []:
        if "valueFrom" in one:
            value = _value_from(pod, container, address, one["valueFrom"], api)
            if value is not None:
                found[one["name"]] = value
        else:
            found[one["name"]] = expand(one.get("value", ""), found)
    return found


def expand(text: str, names: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` with variables; unknown ones stay, ``$$`` is a dollar."""

    def put(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else names.get(match[2], match[0])

    return _REFERENCE.sub(put, text)


def _value_from(
    pod: Object, container: Object, address: str, source: Object, api: Api
) -> str | None:
    namespace = pod["metadata"]["namespace"]
    if "fieldRef" in source:
        return _field(pod, address, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        part, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str(container.get("resources", {}).get(part, {}).get(name, ""))
    for kind, name in (("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")):
        if name in source:
            reference = source[name]
            data = _data(api, namespace, kind, reference)
            if reference["key"] in data:
                return str(data[reference["key"]])
            if not reference.get("optional"):
                raise CannotStart(f"no key {reference['key']} in {reference['name']}")
    return None


def _field(pod: Object, address: str, path: str) -> str:
    if match := _MAP_FIELD.fullmatch(path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    spec, meta = pod["spec"], pod["metadata"]
    fields: dict[str, str] = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": "127.0.0.1",
    }
    return fields[path]


def _data(api: Api, namespace: str, kind: str, reference: Object) -> dict[str, str]:
    path = f"/api/v1/namespaces/{namespace}/{kind}/{reference['name']}"
    try:
        data: dict[str, str] = api.get(path).get("data") or {}
    except Refused as refused:
        if reference.get("optional"):
            return {}
        raise CannotStart(str(refused)) from refused
    if kind == "secrets":
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    return data
