"""Publish what policies may read of the world, from a folder of YAML files.

Room: leader. Takes: a Folder with cluster objects. Gives: data segments by name, values
as JSON bytes. Next: leader/loop.py publishes them, the webhook's adapters read them.
May touch: nothing outside its arguments; the folder through leader/folder.py.
Source: design.md 3 (shared data segments); spec/controllers.md 2.2 (roles), 11.

    namespaces     <name>                     its labels; "" stands when the others are
                                              all there are
                   <name>/                    the object
    configmaps     <namespace>/<name>         the object
    roles          n:<user or group>,         [[namespace, role kind, role name], ...];
                   s:<service account's user> namespace "" = a ClusterRoleBinding
    globalcontext  <entry>[.<projection>]     {"data": ...} or {"error": text}
    apicalls       <METHOD> <path or URL>     {"data": ...} or {"error": text};
                   IMAGE <reference>          the same for images

Every object answers GET of its own path and is in the lists of its kind. Answers of
other paths and of services are given as documents of our own kind:

    apiVersion: kyverno-mp.io/v1alpha1
    kind: ApiCallAnswer
    metadata: {name: any}
    spec: {method: GET, urlPath: /version, response: {major: "1"}}   # or: url, error

and what a registry would say of an image:

    apiVersion: kyverno-mp.io/v1alpha1
    kind: ImageData
    metadata: {name: any}
    spec: {reference: "nginx:1.27", data: {configData: {config: {User: nginx}}}}
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.leader.folder import Folder
from kyverno_mp.leader.global_context import entry_values
from kyverno_mp.leader.objects import (
    ANSWER_VERSION,
    answer_of,
    api_answers,
    name_of,
    namespace_of,
)
from kyverno_mp.policy.load import load
from kyverno_mp.snapshot.data import encode_value
from kyverno_mp.values.jsonvalue import Json

NAMES: Final = ("namespaces", "configmaps", "roles", "globalcontext", "apicalls")
_Values = dict[str, Json]


class WorldFolder:
    """The objects of a folder, and the segments they make."""

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self._files: dict[str, list[Json]] = {}
        self._file_problems: dict[str, str] = {}
        self._folder_problem = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that could not be read; their last good content stays."""
        found = (self._folder_problem, *self._file_problems.values())
        return tuple(problem for problem in found if problem)

    def look(self, now_ns: int, *, force: bool) -> bool:
        """Take changes in; tell whether there were any."""
        if self._folder is None:
            return False
        changes = self._folder.look(now_ns, force=force)
        told = changes.problem != self._folder_problem
        self._folder_problem = changes.problem
        for name in changes.removed:
            self._files.pop(name, None)
            self._file_problems.pop(name, None)
        for name, data in changes.changed.items():
            try:
                self._files[name] = [document.raw for document in load(data, file=name)]
                self._file_problems.pop(name, None)
            except PolicyInvalid as error:
                self._file_problems[name] = f"{error.where}: {error.message}"
        return bool(changes) or told

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment, empty ones included."""
        objects = [
            raw
            for name in sorted(self._files)
            for raw in self._files[name]
            if isinstance(raw, dict)
        ]
        return segments_of(values_of(objects))


def segments_of(values: Mapping[str, _Values]) -> Mapping[str, Mapping[str, bytes]]:
    """Return the content of every segment from the values of each."""
    return {
        name: {key: encode_value(value) for key, value in values[name].items()}
        for name in NAMES
    }


def values_of(objects: list[dict[str, Json]]) -> dict[str, _Values]:
    """Return what the objects give to each segment."""
    values: dict[str, _Values] = {name: {} for name in NAMES}
    cluster = [raw for raw in objects if raw.get("apiVersion") != ANSWER_VERSION]
    values["apicalls"] = api_answers(cluster)
    for raw in objects:
        if raw.get("apiVersion") == ANSWER_VERSION:
            key, answer = answer_of(raw)
            values["apicalls"][key] = answer
    for raw in cluster:
        kind, metadata = raw.get("kind"), raw.get("metadata") or {}
        if kind == "Namespace":
            values["namespaces"][name_of(raw)] = metadata.get("labels") or {}
            values["namespaces"][f"{name_of(raw)}/"] = raw
        elif kind == "ConfigMap":
            values["configmaps"][f"{namespace_of(raw)}/{name_of(raw)}"] = raw
        elif kind in ("RoleBinding", "ClusterRoleBinding"):
            _add_binding(values["roles"], raw)
    if values["namespaces"]:
        values["namespaces"][""] = {}
    for raw in cluster:
        if raw.get("kind") == "GlobalContextEntry":
            values["globalcontext"].update(entry_values(raw, values["apicalls"]))
    return values


def _add_binding(roles: _Values, raw: dict[str, Json]) -> None:
    """Enter a binding under each of its subjects.

    KYVERNO: users and groups share one set of names (controllers.md 2.2).
    """
    namespace = namespace_of(raw) if raw["kind"] == "RoleBinding" else ""
    reference = raw.get("roleRef") or {}
    row = [namespace, str(reference.get("kind", "")), str(reference.get("name", ""))]
    for subject in raw.get("subjects") or []:
        name = str(subject.get("name", ""))
        if subject.get("kind") == "ServiceAccount":
            owner = subject.get("namespace") or namespace
            key = f"s:system:serviceaccount:{owner}:{name}"
        else:
            key = f"n:{name}"
        rows = roles.setdefault(key, [])
        if row not in rows:
            rows.append(row)
