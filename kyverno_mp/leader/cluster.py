"""Read the leader's policies and cluster data from the API server.

Room: leader. Takes: a Client. Gives: ClusterPolicies and LiveClusterData, with the
interface of the folders of standalone mode. Next: leader/loop.py. May touch: the API
server through kube's informers, which run in threads.
Source: docs/architecture.md 2, 3; docs/behaviour/controllers 11.5 (ConfigMaps), 2.2
(roles).

Events are hints: an informer reports keys, and the leader reads the cache when it
polls. The projections omit changes of an object that do not change its meaning (status,
versions, managed fields), so that our own status writes cause no compilation.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from kyverno_mp.egress.kinds import KINDS, rows_of
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Key, Resource, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.cluster_data import OF_KINDS
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.global_context_cluster import ClusterGlobalContext
from kyverno_mp.leader.policy_store import FROM_CLUSTER
from kyverno_mp.snapshot.data import encode_value
from kyverno_mp.values.jsonvalue import Json

CACHED_CONFIG_MAPS: Final = "cache.kyverno.io/enabled"
_RBAC: Final = "rbac.authorization.k8s.io"
_CONTEXT: Final = "globalcontext"
_IDLE_FIELDS: Final = ("managedFields", "resourceVersion", "selfLink")


def _kyverno(version: str, plural: str, *, namespaced: bool) -> Resource:
    return Resource(
        group="kyverno.io", version=version, plural=plural, namespaced=namespaced
    )


CLUSTER_POLICIES: Final = _kyverno("v1", "clusterpolicies", namespaced=False)
POLICIES: Final = _kyverno("v1", "policies", namespaced=True)
EXCEPTIONS: Final = _kyverno("v2", "policyexceptions", namespaced=True)


class ClusterPolicies:
    """Policies and exceptions of the cluster, as a source of Changes."""

    def __init__(self, client: Client) -> None:
        self.informers = [
            Informer(client, WatchScope(resource=resource), policy_text)
            for resource in (CLUSTER_POLICIES, POLICIES, EXCEPTIONS)
        ]
        self._moved = [_Moved(informer) for informer in self.informers]
        self._given: dict[str, bytes] = {}
        self._looked: dict[str, int] = {}
        self.settled: tuple[Mapping[str, int], int] = ({}, 0)
        """Resource versions by plural name: a worker that has attached the paired
        generation has all changes up to them in force."""

    def look(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return the changes since the last call. Cost: proportional to them."""
        del now_ns, force, wait  # a cache is never half written
        changed: dict[str, bytes] = {}
        removed: list[str] = []
        # The keys of all changes up to these versions are taken below.
        self._looked = {
            informer.scope.resource.plural: int(informer.told)
            for informer in self.informers[:2]
            if informer.told.isdecimal()
        }
        for moved in self._moved:
            for key in moved.take():
                name = _name_of(moved.informer.scope.resource, key)
                text = moved.informer.get(key)
                if text is None and self._given.pop(name, None) is not None:
                    removed.append(name)
                elif text is not None and self._given.get(name) != text:
                    self._given[name] = changed[name] = text
        return Changes(changed, tuple(removed))

    def published(self, generation: int) -> None:
        """Record the generation that publishes the changes of the last ``look``."""
        self.settled = self._looked, generation

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in an informer's thread, when ``look`` would find a change."""
        for informer in self.informers:
            informer.on_told(wake)

    def version_of(self, kind: str, key: Key) -> tuple[str, int]:
        """Return the plural name of a policy's resource, and its version, 0 if none."""
        informer = self.informers[1 if kind == "Policy" else 0]
        text = informer.version_of(key)
        return informer.scope.resource.plural, int(text) if text.isdecimal() else 0

    def documents(self) -> list[bytes]:
        """Return the cluster's present policies, without exceptions, as JSON."""
        return [
            text
            for informer in self.informers[:2]
            for text in informer.snapshot().values()
        ]


class LiveClusterData:
    """The data segments for policies; an unchanged segment stays the same object."""

    def __init__(
        self,
        client: Client,
        context: ClusterGlobalContext,
        directory: Callable[[], Directory],
        *,
        config_maps: bool = True,
    ) -> None:
        """``directory``: what the API server serves, empty before discovery.

        ``config_maps``: whether to publish ConfigMaps with the cache label.
        """
        self._context = context
        self._directory = directory
        self._published = Directory(())
        watched = {
            "Namespace": (core("namespaces", namespaced=False), ""),
            "RoleBinding": (_rbac("rolebindings", namespaced=True), ""),
            "ClusterRoleBinding": (_rbac("clusterrolebindings", namespaced=False), ""),
        }
        if config_maps:
            watched["ConfigMap"] = core("configmaps"), CACHED_CONFIG_MAPS
        self._moved = {
            kind: _Moved(_of_kind(client, kind, resource, labels))
            for kind, (resource, labels) in watched.items()
        }
        self.informers = [moved.informer for moved in self._moved.values()]
        self._kept: dict[str, Mapping[str, bytes]] = {}
        self.problems: tuple[str, ...] = ()

    def look(self, now_ns: int, *, force: bool) -> bool:
        """Tell whether anything changed since the last call."""
        del now_ns, force  # a cache knows by itself
        first = not self._kept
        moved = {kind for kind, one in self._moved.items() if one.take()}
        context = self._context.look()
        kinds = self._kinds_moved()
        if first:
            # Live calls answer these; only a folder has canned answers.
            self._kept["apicalls"] = {}
        for name, (of_kinds, _) in OF_KINDS.items():
            if first or not moved.isdisjoint(of_kinds):
                self._take_objects(name)
        if context or first:
            self._kept[_CONTEXT] = self._context.values()
        if kinds:
            self._kept[KINDS] = {KINDS: encode_value(rows_of(self._published))}
        return bool(moved) or context or kinds or first

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment."""
        return self._kept

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in an informer's thread, when ``look`` would find a change."""
        for informer in self.informers:
            informer.on_told(wake)

    def _kinds_moved(self) -> bool:
        directory = self._directory()
        if directory is self._published or not directory.resources:
            return False
        same = directory == self._published
        self._published = directory
        return not same

    def _take_objects(self, name: str) -> None:
        """Compute one segment. Cost: one pass over the objects of its kinds.

        PERF: each object is released before the next is decoded.
        """
        kinds, made_of = OF_KINDS[name]
        objects: Iterator[dict[str, Json]] = (
            msgspec.json.decode(text)
            for kind, moved in self._moved.items()
            if kind in kinds
            for text in moved.informer.snapshot().values()
        )
        segment = {key: encode_value(value) for key, value in made_of(objects)}
        if segment != self._kept.get(name):
            self._kept[name] = segment


class _Moved:
    """The keys of one informer that changed since the last ``take``."""

    def __init__(self, informer: Informer[bytes]) -> None:
        self.informer = informer
        self._lock = threading.Lock()
        self._keys: set[Key] = set()
        informer.on_change(self._add)

    def take(self) -> Sequence[Key]:
        """Return the keys and forget them."""
        with self._lock:
            keys, self._keys = self._keys, set()
        return sorted(keys)

    def _add(self, key: Key) -> None:
        with self._lock:
            self._keys.add(key)


def policy_text(raw: msgspec.Raw) -> bytes:
    """Project a policy to the fields that affect evaluation."""
    document = msgspec.json.decode(raw)
    document.pop("status", None)
    for name in _IDLE_FIELDS:
        document["metadata"].pop(name, None)
    return msgspec.json.encode(document)


def _of_kind(
    client: Client, kind: str, resource: Resource, labels: str
) -> Informer[bytes]:
    def project(raw: msgspec.Raw) -> bytes:
        document = msgspec.json.decode(raw)
        for name in _IDLE_FIELDS:
            document["metadata"].pop(name, None)
        # K8S: items of a list carry neither kind nor apiVersion.
        document.update(kind=kind, apiVersion=resource.api_version)
        return msgspec.json.encode(document)

    scope = WatchScope(resource=resource, label_selector=labels)
    return Informer(client, scope, project)


def _rbac(plural: str, *, namespaced: bool) -> Resource:
    return Resource(group=_RBAC, version="v1", plural=plural, namespaced=namespaced)


def _name_of(resource: Resource, key: Key) -> str:
    return f"{FROM_CLUSTER}{resource.plural}/{key[0]}/{key[1]}"
