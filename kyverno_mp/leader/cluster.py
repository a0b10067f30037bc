"""Read the leader's policies and cluster data from the API server.

Room: leader. Takes: a Client. Gives: LivePolicies and LiveClusterData, with the same
interface as the folders of standalone mode. Next: leader/loop.py. May touch: the API
server through kube's informers, which run in threads.
Source: docs/architecture.md 2, 3; docs/behaviour/controllers 11.5 (ConfigMaps), 2.2
(roles).

Events are hints: an informer reports keys, and the leader reads the cache when it
polls. The projections omit fields that do not affect evaluation (most of the status,
versions, managed fields), so that few of our own status writes cause a compilation.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from kyverno_mp.egress.kinds import KINDS, rows_of
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.policy_resources import (
    CEL_EXCEPTIONS,
    EXCEPTIONS,
    RULE_POLICIES,
    resource_of,
)
from kyverno_mp.kube.resource import Key, Resource, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.callers import PublishedCallers
from kyverno_mp.leader.cluster_data import COMPLETE, OF_KINDS, PAIRS_OF
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.leader.documents.source_room import SourceRoom
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_documents import IDLE_FIELDS, PolicyDocuments
from kyverno_mp.leader.rollouts import PublishedRollouts
from kyverno_mp.leader.stored_document import FROM_CLUSTER
from kyverno_mp.snapshot.callers import CALLERS
from kyverno_mp.snapshot.data import encode_value
from kyverno_mp.snapshot.rollouts import ROLLOUTS
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    OF_AUTHORIZERS,
    REVIEWED_CEL_KINDS,
    WITH_RULES,
)

CACHED_CONFIG_MAPS: Final = "cache.kyverno.io/enabled"
_RBAC: Final = "rbac.authorization.k8s.io"
_CONTEXT: Final = "globalcontext"


CEL_RESOURCES: Final = {
    stored.kind: resource_of(stored)
    for row in REVIEWED_CEL_KINDS
    for stored in row.stored
}
_OF_AUTHORIZERS: Final = (CEL_RESOURCES[OF_AUTHORIZERS.name], CEL_EXCEPTIONS)


class LivePolicies:
    """Policies and exceptions of the cluster, as a source of Changes."""

    def __init__(
        self,
        client: Client,
        *,
        watched: bool = True,
        authorizes: bool = False,
        room: SourceRoom | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``watched`` is False in a pod in which no role evaluates policies.

        ``authorizes``: an authorizer evaluates them, which needs only its own kinds.
        ``room`` bounds the documents of all namespaces together.
        """
        self._documents = PolicyDocuments(room or SourceRoom(), monotonic_s)
        follow = partial(self._documents.follow, client)
        self.informers = [
            follow(resource)
            for resource in (*RULE_POLICIES, EXCEPTIONS)
            if watched and not authorizes
        ]
        self.cel_informers = [
            follow(resource)
            for resource in (*CEL_RESOURCES.values(), CEL_EXCEPTIONS)
            if watched and (not authorizes or resource in _OF_AUTHORIZERS)
        ]
        """Informers of kinds that an older installation of Kyverno's CRDs lacks."""
        self._changed_keys = [
            _ChangedKeys(informer)
            for informer in (*self.informers, *self.cel_informers)
        ]
        self._policy_keys = [
            changed_key
            for changed_key in self._changed_keys
            if changed_key.informer in self.policy_informers
        ]
        self._given: dict[str, bytes] = {}
        self._polled_versions: dict[str, int] = {}
        self.settled: tuple[Mapping[str, int], int] = ({}, 0)
        """Resource versions by plural name, and a generation: a worker that has
        attached this generation enforces all changes up to these versions."""

    def poll(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return the changes since the last call. Cost: proportional to the changes."""
        del now_ns, force, wait  # informers update their caches atomically
        reduced = self._documents.balance()
        changed: dict[str, bytes] = {}
        removed: list[str] = []
        # The keys of all changes up to these versions are read below.
        self._polled_versions = {
            changes.informer.scope.resource.plural: int(changes.version)
            for changes in self._policy_keys
            if changes.version.isdecimal()
        }
        for changes in self._changed_keys:
            keys = {*changes.take(), *reduced.get(changes.informer, ())}
            for key in sorted(keys):
                name = _name_of(changes.informer.scope.resource, key)
                content = changes.informer.get(key)
                if content is None and self._given.pop(name, None) is not None:
                    removed.append(name)
                elif content is not None and self._given.get(name) != content:
                    self._given[name] = changed[name] = content
        return Changes(changed, tuple(removed))

    def published(self, generation: int) -> None:
        """Record the generation that contains the changes of the last ``poll``."""
        self.settled = self._polled_versions, generation

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in an informer's thread, when there are changes to poll."""
        for informer in (*self.informers, *self.cel_informers):
            informer.on_notified(wake)

    @property
    def is_complete(self) -> bool:
        """Return whether all policies in CEL were listed, or have no served kind."""
        return all(
            informer.synced or informer.is_absent for informer in self.cel_informers
        )

    def version_of(self, kind: str, key: Key) -> tuple[str, int]:
        """Return the plural name of a policy's resource, and its version, 0 if none."""
        if kind in CEL_RESOURCES:
            informer = self.cel_informers[list(CEL_RESOURCES).index(kind)]
        else:
            informer = self.informers[kind == WITH_RULES.namespaced.kind]
        version = informer.version_of(key)
        return informer.scope.resource.plural, int(
            version
        ) if version.isdecimal() else 0

    @property
    def policy_informers(self) -> list[Informer[bytes]]:
        """The informers of policies, but not of exceptions."""
        return [*self.informers[:2], *self.cel_informers[: len(CEL_RESOURCES)]]

    def of_tenants(self) -> dict[tuple[str, str, str], bytes]:
        """Return the namespaced policies by plural, namespace and name."""
        return {
            (informer.scope.resource.plural, *key): content
            for informer in self.policy_informers
            if informer.scope.resource.namespaced
            for key, content in informer.snapshot().items()
        }

    def exception(self, key: Key) -> bytes | None:
        """Return a PolicyException from the cache."""
        return self.informers[2].get(key) if self.informers else None

    def exception_documents(self) -> list[bytes]:
        """Return the cluster's PolicyExceptions of both groups, as JSON."""
        informers = (*self.informers[2:], *self.cel_informers[len(CEL_RESOURCES) :])
        return [
            content
            for informer in informers
            for content in informer.snapshot().values()
        ]

    def cel_documents(self) -> list[bytes]:
        """Return the cluster's current policies in CEL, as JSON."""
        return [
            content
            for informer in self.cel_informers[: len(CEL_RESOURCES)]
            for content in informer.snapshot().values()
        ]

    def documents(self) -> list[bytes]:
        """Return the cluster's current policies, without exceptions, as JSON."""
        return [
            content
            for informer in self.informers[:2]
            for content in informer.snapshot().values()
        ]


def authorizer_policies(client: Client) -> LivePolicies:
    """Return the policies and exceptions of the cluster that an authorizer uses."""
    return LivePolicies(client, authorizes=True)


class LiveClusterData:
    """The data segments for policies; unchanged segments stay the same objects."""

    def __init__(  # noqa: PLR0913 - what it publishes, by name
        self,
        client: Client,
        context: ClusterGlobalContext,
        directory: Callable[[], Directory],
        *,
        config_maps: bool = True,
        reviews: bool = True,
        callers: PublishedCallers | None = None,
        rollouts: PublishedRollouts | None = None,
    ) -> None:
        """``directory`` returns the served resources; it is empty before discovery.

        ``config_maps``: whether to publish ConfigMaps with the cache label.
        ``reviews``: whether this pod answers reviews, which require the roles of users.
        Pools require the namespaces in which their account has a role. ``callers`` is
        None in a pod that answers none, as ``rollouts`` is.
        """
        self._context = context
        self._callers = callers
        self._rollouts = rollouts
        self._directory = directory
        self._published = Directory(())
        watched = {
            "Namespace": (core("namespaces", namespaced=False), ""),
            "RoleBinding": (_rbac("rolebindings", namespaced=True), ""),
            "ClusterRoleBinding": (_rbac("clusterrolebindings", namespaced=False), ""),
        }
        if not reviews:
            del watched["ClusterRoleBinding"]
        elif config_maps:
            watched["ConfigMap"] = core("configmaps"), CACHED_CONFIG_MAPS
        self._changed_keys = {
            kind: _ChangedKeys(_of_kind(client, kind, resource, labels))
            for kind, (resource, labels) in watched.items()
        }
        self.informers = [changed.informer for changed in self._changed_keys.values()]
        self._segments: dict[str, Mapping[str, bytes]] = {}
        self.problems: tuple[str, ...] = ()

    def poll(self, now_ns: int, *, force: bool) -> bool:
        """Return whether anything changed since the last call."""
        del now_ns, force  # informers report changes
        first = not self._segments
        changed_keys = {
            kind: tracker.take() for kind, tracker in self._changed_keys.items()
        }
        changed = {kind for kind, keys in changed_keys.items() if keys}
        context = self._context.poll()
        kinds = self._kinds_changed()
        if first:
            # In a cluster, live calls answer these; only a folder has canned answers.
            self._segments["apicalls"] = {}
        for name, (of_kinds, _) in OF_KINDS.items():
            if not first and changed.isdisjoint(of_kinds):
                continue
            if first or name not in PAIRS_OF:
                self._take_objects(name)
            else:
                self._take_changes(name, of_kinds[0], changed_keys[of_kinds[0]])
        if context or first:
            self._segments[_CONTEXT] = self._context.values()
        if kinds:
            self._segments[KINDS] = {KINDS: encode_value(rows_of(self._published))}
        callers = self._callers is not None and (self._callers.poll() or first)
        if callers and self._callers is not None:
            self._segments[CALLERS] = self._callers.values()
        rollouts = self._rollouts is not None and self._rollouts.poll()
        if rollouts and self._rollouts is not None:
            self._segments[ROLLOUTS] = self._rollouts.values()
        other_changes = context or kinds or callers or rollouts
        return bool(changed) or other_changes or first

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment."""
        return self._segments

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in an informer's thread, when there are changes to poll."""
        for informer in self.informers:
            informer.on_notified(wake)
        if self._callers is not None:
            self._callers.on_change(wake)
        if self._rollouts is not None:
            self._rollouts.on_change(wake)

    def _kinds_changed(self) -> bool:
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
            msgspec.json.decode(content)
            for kind, changed in self._changed_keys.items()
            if kind in kinds
            for content in changed.informer.snapshot().values()
        )
        segment = {key: encode_value(value) for key, value in made_of(objects)}
        if segment != self._segments.get(name):
            self._segments[name] = segment

    def _take_changes(self, name: str, kind: str, keys: Sequence[Key]) -> None:
        """Replace the changed objects of a segment.

        PERF: when a Namespace is created, the others are neither decoded nor encoded.
        """
        before = self._segments[name]
        segment = dict(before)
        for key in keys:
            content = self._changed_keys[kind].informer.get(key)
            if content is None:
                named: Json = {"metadata": {"namespace": key[0], "name": key[1]}}
                for removed_key, _ in PAIRS_OF[name](named):
                    segment.pop(removed_key, None)
            else:
                for entry_key, value in PAIRS_OF[name](msgspec.json.decode(content)):
                    segment[entry_key] = encode_value(value)
        if kind == "Namespace":
            segment.pop(COMPLETE, None)
            if segment:
                segment[COMPLETE] = encode_value({})
        if segment != before:
            self._segments[name] = segment


class _ChangedKeys:
    """The keys of one informer that changed since the last ``take``."""

    def __init__(self, informer: Informer[bytes]) -> None:
        self.informer = informer
        self._lock = threading.Lock()
        self._keys: set[Key] = set()
        self.version = ""
        """The keys of all changes up to this version were added. It does not move
        without changes, as the version in a bookmark does."""
        informer.on_change(self._add)
        informer.on_notified(self._note)

    def take(self) -> Sequence[Key]:
        """Return the keys, and clear them."""
        with self._lock:
            keys, self._keys = self._keys, set()
        return sorted(keys)

    def _add(self, key: Key) -> None:
        with self._lock:
            self._keys.add(key)

    def _note(self) -> None:
        self.version = self.informer.notified_version


def _of_kind(
    client: Client, kind: str, resource: Resource, labels: str
) -> Informer[bytes]:
    def project(raw: msgspec.Raw) -> bytes:
        document = msgspec.json.decode(raw)
        for name in IDLE_FIELDS:
            document["metadata"].pop(name, None)
        # K8S: items of a list carry neither kind nor apiVersion.
        document.update(kind=kind, apiVersion=resource.api_version)
        return msgspec.json.encode(document)

    scope = WatchScope(resource=resource, label_selector=labels)
    return Informer(client, scope, project)


def _rbac(plural: str, *, namespaced: bool) -> Resource:
    return Resource(group=_RBAC, version="v1", plural=plural, namespaced=namespaced)


def _name_of(resource: Resource, key: Key) -> str:
    return f"{FROM_CLUSTER}{resource.group}/{resource.plural}/{key[0]}/{key[1]}"
