"""Publish the cluster data for policies from a folder of YAML files.

Room: leader. Takes: a Folder with cluster objects. Gives: data segments by name, values
as JSON bytes. Next: leader/loop.py publishes them, the webhook's adapters read them.
May touch: nothing outside its arguments; the folder through leader/folder.py.
Source: docs/architecture.md 3 (shared data segments); docs/behaviour/controllers 2.2
(roles), 11.

    namespaces     <name>                     its labels; the key "" marks the list as
                                              complete
                   <name>/                    the object
    configmaps     <namespace>/<name>         the object
    roles          n:<user or group>,         [[namespace, role kind, role name], ...];
                   s:<service account's user> namespace "" = a ClusterRoleBinding
    globalcontext  <entry>[.<projection>]     {"data": ...} or {"error": text}
    apicalls       <METHOD> <path or URL>     {"data": ...} or {"error": text};
                   IMAGE <reference>          the same for images

Every object is the response to a GET of its path, and is in the lists of its kind.
Documents of our own kinds contain the responses of other paths and of services:

    apiVersion: kyverno-mp.io/v1alpha1
    kind: ApiCallAnswer
    metadata: {name: any}
    spec: {method: GET, urlPath: /version, response: {major: "1"}}   # or: url, error

and the data of an image in a registry:

    apiVersion: kyverno-mp.io/v1alpha1
    kind: ImageData
    metadata: {name: any}
    spec: {reference: "nginx:1.27", data: {configData: {config: {User: nginx}}}}

ClusterFacts is the head of a file from the command ``facts``; cli/replay/facts.py reads
it, nothing here does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.leader.context.entries import entry_values
from kyverno_mp.leader.folder import Folder
from kyverno_mp.leader.objects import (
    ANSWER_VERSION,
    FACTS,
    answer_of,
    api_answers,
    name_of,
    namespace_of,
)
from kyverno_mp.policy.reading.load import load
from kyverno_mp.snapshot.data import encode_value
from kyverno_mp.values.jsonvalue import Json

NAMES: Final = ("namespaces", "configmaps", "roles", "globalcontext", "apicalls")
COMPLETE: Final = ""
"""The key that marks the list of namespaces as complete."""
_Values = dict[str, Json]
_Objects = Iterable[dict[str, Json]]
_Pairs = Iterable[tuple[str, Json]]


class ClusterDataFolder:
    """The objects of a folder, and their segments."""

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self._files: dict[str, list[Json]] = {}
        self._file_problems: dict[str, str] = {}
        self._folder_problems: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Errors of unreadable files; their last valid content stays in use."""
        return (*self._folder_problems, *self._file_problems.values())

    def poll(self, now_ns: int, *, force: bool) -> bool:
        """Read changes; return whether there were any."""
        if self._folder is None:
            return False
        changes = self._folder.poll(now_ns, force=force)
        problems_changed = changes.problems != self._folder_problems
        self._folder_problems = changes.problems
        for name in changes.removed:
            self._files.pop(name, None)
            self._file_problems.pop(name, None)
        for name, data in changes.changed.items():
            try:
                self._files[name] = [document.raw for document in load(data, file=name)]
                self._file_problems.pop(name, None)
            except PolicyInvalid as error:
                self._file_problems[name] = f"{error.where}: {error.message}"
        return bool(changes) or problems_changed

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment, including empty ones."""
        objects = [
            raw
            for name in sorted(self._files)
            for raw in self._files[name]
            if isinstance(raw, dict)
        ]
        return segments_of(values_of(objects))


def segments_of(values: Mapping[str, _Values]) -> Mapping[str, Mapping[str, bytes]]:
    """Return the content of every segment from its values."""
    return {
        name: {key: encode_value(value) for key, value in values[name].items()}
        for name in NAMES
    }


def values_of(objects: list[dict[str, Json]]) -> dict[str, _Values]:
    """Return the values of each segment from the objects of a folder."""
    cluster: list[dict[str, Json]] = []
    answers: _Values = {}
    by_kind: dict[str, list[dict[str, Json]]] = {}
    for raw in objects:
        if raw.get("apiVersion") == ANSWER_VERSION:
            if raw.get("kind") == FACTS:
                continue
            key, answer = answer_of(raw)
            answers[key] = answer
        else:
            cluster.append(raw)
            by_kind.setdefault(str(raw.get("kind")), []).append(raw)
    values: dict[str, _Values] = {name: {} for name in NAMES}
    for name, (kinds, made_of) in OF_KINDS.items():
        matching = [raw for kind in kinds for raw in by_kind.get(kind, ())]
        values[name] = dict(made_of(matching))
    values["apicalls"] = api_answers(cluster) | answers
    for raw in by_kind.get("GlobalContextEntry", ()):
        values["globalcontext"].update(entry_values(raw, values["apicalls"]))
    return values


def _pairs_of_namespace(raw: dict[str, Json]) -> _Pairs:
    name = name_of(raw)
    yield name, (raw.get("metadata") or {}).get("labels") or {}
    yield f"{name}/", raw


def _pairs_of_config_map(raw: dict[str, Json]) -> _Pairs:
    yield f"{namespace_of(raw)}/{name_of(raw)}", raw


def _namespaces(objects: _Objects) -> _Pairs:
    any_there = False
    for raw in objects:
        any_there = True
        yield from _pairs_of_namespace(raw)
    if any_there:
        yield COMPLETE, {}


def _config_maps(objects: _Objects) -> _Pairs:
    for raw in objects:
        yield from _pairs_of_config_map(raw)


def _roles(objects: _Objects) -> _Pairs:
    roles: _Values = {}
    for raw in objects:
        _add_binding(roles, raw)
    return roles.items()


def _add_binding(roles: _Values, raw: dict[str, Json]) -> None:
    """Add a binding under each of its subjects.

    KYVERNO: users and groups share one set of names (docs/behaviour/controllers 2.2).
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


OF_KINDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[_Objects], _Pairs]]]] = {
    "namespaces": (("Namespace",), _namespaces),
    "configmaps": (("ConfigMap",), _config_maps),
    "roles": (("RoleBinding", "ClusterRoleBinding"), _roles),
}
"""Segments that contain whole objects: the kinds of each, and the function for their
values."""
PAIRS_OF: Final[Mapping[str, Callable[[dict[str, Json]], _Pairs]]] = {
    "namespaces": _pairs_of_namespace,
    "configmaps": _pairs_of_config_map,
}
"""Segments in which each object has its own keys, which depend only on its namespace
and name, so that a changed object can be replaced alone."""
