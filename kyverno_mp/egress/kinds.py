"""Look up the kinds of the cluster in a worker, which runs no informers.

Room: egress. Takes: the discovery rows that the leader publishes, a Client. Gives:
LiveKinds, which satisfies policy/ports.Kinds, and the Directory for egress/objects.py.
Next: webhook/live.py; leader/cluster.py publishes the rows.
May touch: the API server through kube/discovery.py, for unknown kinds; the clock.
Source: Kyverno pkg/clients/dclient/discovery.go (a kind that is not found is looked up
again).
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import DISCOVERY_WAIT_S_MAX
from kyverno_mp.policy.ports import BuiltInKinds, FoundKind
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector

_log = logging.getLogger(__name__)
KINDS: Final = "kinds"
"""Name of the segment and of its only value."""
_ASK_AGAIN_S: Final = 2.0


def rows_of(directory: Directory) -> Json:
    """Return a Directory as JSON, e.g. ``[["apps", "v1", "deployments", ..]]``."""
    return [
        [
            resource.group,
            resource.version,
            resource.plural,
            resource.kind,
            resource.namespaced,
            resource.subresource,
            list(resource.verbs),
        ]
        for resource in directory.resources
    ]


def published_rows(directory: Callable[[], Directory]) -> Callable[[], Json]:
    """Return the rows for LiveKinds in the process that has the directory itself."""
    cached: list[tuple[Directory, Json]] = []

    def rows() -> Json:
        newest = directory()
        if not cached or cached[0][0] is not newest:
            cached[:] = [(newest, rows_of(newest))]
        return cached[0][1]

    return rows


def directory_of(rows: Json) -> Directory:
    """Return the Directory for the rows that ``rows_of`` returned."""
    return Directory(
        Resource(
            group=group,
            version=version,
            plural=plural,
            kind=kind,
            namespaced=namespaced,
            subresource=subresource,
            verbs=tuple(verbs),
        )
        for group, version, plural, kind, namespaced, subresource, verbs in rows
    )


class LiveKinds:
    """The newest Directory in this worker; thread-safe."""

    def __init__(self, published: Callable[[], Json | None], client: Client) -> None:
        """``published`` returns the current rows, a new object only after a change."""
        self._published = published
        self._discovery = Discovery(client)
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._rows: Json | None = None
        self._directory = Directory(())
        self._facts: BuiltInKinds | None = None
        self._kind_of: dict[tuple[str, str, str], str] = {}
        self._asked_s = -_ASK_AGAIN_S

    @property
    def is_complete(self) -> bool:
        """Return whether an unknown kind is certain not to exist."""
        return bool(self.directory().resources)

    def directory(self) -> Directory:
        """Return the newest directory, without a call."""
        rows = self._published()
        with self._lock:
            if rows is not None and rows is not self._rows:
                self._rows = rows
                self._set(directory_of(rows))
                # They may be older than our last answer of the API server.
                self._asked_s = -_ASK_AGAIN_S
            return self._directory

    def kind_of(self, group: str, version: str, plural: str) -> str | None:
        """Return the kind of a resource, without a call; None when it is unknown."""
        self.directory()
        return self._kind_of.get((group, version, plural)) or None

    def plural_of(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind, "" if unknown; may call the API server."""
        group, _, version = api_version.rpartition("/")
        for find in (self.directory, self._asked):
            for resource in find().resources:
                is_kind = (resource.group, resource.version, resource.kind) == (
                    group,
                    version,
                    kind,
                )
                if is_kind and not resource.subresource:
                    return resource.plural
        return ""

    def resources(self, selector: KindSelector) -> tuple[Resource, ...]:
        """Return the resources of a selector; calls the API server if none is known."""
        return self.directory().find(selector) or self._asked().find(selector)

    def find(self, selector: KindSelector) -> list[FoundKind]:
        """Return everything that the selector's four patterns match."""
        kinds = self._kinds(self.directory()).find(selector)
        return kinds or self._kinds(self._asked()).find(selector)

    def cluster_kinds(self) -> frozenset[str]:
        """Return ``Kind`` and ``group/version/Kind`` of the cluster-scoped kinds."""
        return self._kinds(self.directory()).cluster_kinds()

    def subresource_kinds(self) -> frozenset[str]:
        """Return the kinds that exist only as subresources, e.g. Scale."""
        parts = {
            resource.kind
            for resource in self.directory().resources
            if resource.subresource
        }
        top_level = {
            resource.kind
            for resource in self.directory().resources
            if not resource.subresource
        }
        return frozenset(parts - top_level - {""})

    def _asked(self) -> Directory:
        """Refresh from the API server, but at most once in ``_ASK_AGAIN_S``.

        Threads wait for the refresh of another one: without it, they would take a kind
        that exists for unknown.
        """
        if not self._asking.acquire(timeout=DISCOVERY_WAIT_S_MAX):
            return self._directory
        try:
            if time.monotonic() - self._asked_s >= _ASK_AGAIN_S:
                self._ask()
        finally:
            self._asking.release()
        return self._directory

    def _ask(self) -> None:
        directory: Directory | None = None
        try:
            self._discovery.refresh()
            directory = self._discovery.directory
        except DependencyError as error:
            _log.warning("discovery: %s", error.message)
        with self._lock:
            if directory is not None:
                self._set(directory)
            self._asked_s = time.monotonic()

    def _set(self, directory: Directory) -> None:
        self._directory, self._facts = directory, None
        self._kind_of = {
            (resource.group, resource.version, resource.plural): resource.kind
            for resource in directory.resources
            if not resource.subresource
        }

    def _kinds(self, directory: Directory) -> BuiltInKinds:
        with self._lock:
            if self._facts is None or directory is not self._directory:
                self._facts = BuiltInKinds(_api_resources(directory), is_complete=True)
            return self._facts


def _api_resources(directory: Directory) -> list[ApiResource]:
    parts: dict[tuple[str, str, str], list[str]] = {}
    for resource in directory.resources:
        if resource.subresource:
            key = (resource.group, resource.version, resource.plural)
            parts.setdefault(key, []).append(resource.subresource)
    return [
        ApiResource(
            resource.group,
            resource.version,
            resource.kind,
            resource.plural,
            resource.namespaced,
            tuple(parts.get((resource.group, resource.version, resource.plural), ())),
        )
        for resource in directory.resources
        if not resource.subresource
    ]
