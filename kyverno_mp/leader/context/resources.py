"""Maintain the data of a GlobalContextEntry with an informer.

Room: leader. Takes: an entry with ``kubernetesResource``, a Client. Gives:
ResourceSource. Next: leader/context/cluster.py.
May touch: threads, the API server, the clock.
Source: docs/behaviour/controllers 11.2; Kyverno pkg/globalcontext/k8sresource.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeRefused
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.context.entries import resource_values
from kyverno_mp.leader.context.sources import (
    TOO_LARGE,
    EntryState,
    Report,
    SourceThread,
)
from kyverno_mp.leader.objects import base_path
from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRY_BYTES_MAX
from kyverno_mp.policy.documents.global_context_entry import (
    GlobalContextEntry,
    KubernetesResource,
)
from kyverno_mp.values.jsonvalue import Json

_AGAIN_S_MAX: Final = 10.0
"""The longest pause between retries of a resource that is not served or readable."""
_TOO_LARGE_AGAIN_S: Final = 300.0
_SETTLE_S: Final = 0.1
_IDLE_SHARE: Final = 5
"""The pause after computing a large entry, as a multiple of the time that it took."""
_BYTES_PER_S: Final = 8 * 1024 * 1024
"""The publication budget of a large entry that changes constantly."""
_LOOK_S: Final = 2.0
_FAILURES_MAX: Final = 3
"""The number of consecutive watch failures after which the data counts as stale."""


def named_resource(client: Client, reference: KubernetesResource) -> Resource:
    """Return the resource that an entry names. Raises: DependencyError."""
    version = (
        f"{reference.group}/{reference.version}"
        if reference.group
        else reference.version
    )
    listing = client.get(base_path(version))
    for resource in listing.get("resources") or ():
        if resource.get("name") == reference.resource:
            return Resource(
                group=reference.group,
                version=reference.version,
                plural=reference.resource,
                kind=str(resource.get("kind") or ""),
                namespaced=resource.get("namespaced") is True,
            )
    raise KubeRefused(
        "leader.global_context", f"{version} has no resource {reference.resource}"
    )


class ResourceSource(SourceThread):
    """Keeps all objects of one resource up to date.

    Before the first list, the entry does not exist for policies, as in upstream.
    """

    def __init__(
        self, entry: GlobalContextEntry, client: Client, report: Report
    ) -> None:
        super().__init__(entry, EntryState({}), report)
        self._client = client
        self._moved = threading.Event()
        self._again = threading.Event()
        self._cache: _Cache | None = None

    def stop(self) -> None:
        """Signal the threads to stop."""
        super().stop()
        self._moved.set()
        self._again.set()

    def retry_now(self) -> None:
        """Look up the resource now, because it may have appeared or reappeared."""
        self._again.set()
        cache = self._cache
        if cache is not None:
            cache.informer.retry_now()

    def _run(self) -> None:
        cache = self._open()
        if cache is None:
            return
        self._cache = cache
        try:
            self._follow(cache)
        finally:
            self._cache = None
            cache.informer.stop()
        if cache.too_large:
            self._fail(TOO_LARGE)
            self._stopping.wait(_TOO_LARGE_AGAIN_S)

    def _open(self) -> "_Cache | None":
        """Find the resource and start to watch it; None if stopped."""
        pause_s = _SETTLE_S
        while True:
            self._again.clear()
            if self._stopping.is_set():
                return None
            try:
                resource = self._found()
            except DependencyError as error:
                self._report_trouble(error.message)
                pause_s = min(_AGAIN_S_MAX, pause_s * 2)
                self._again.wait(pause_s)
                continue
            cache = _Cache(self._client, resource, self._namespace, self._moved.set)
            cache.informer.start()
            return cache

    @property
    def _namespace(self) -> str:
        resource = self._entry.spec.kubernetes_resource
        assert resource is not None
        return resource.namespace

    def _found(self) -> Resource:
        reference = self._entry.spec.kubernetes_resource
        assert reference is not None
        return named_resource(self._client, reference)

    def _follow(self, cache: "_Cache") -> None:
        informer = cache.informer
        while not informer.wait_synced(_SETTLE_S):
            if self._stopping.is_set() or cache.too_large:
                return
            if informer.failures:
                self._report_trouble(informer.last_error)
        self._moved.set()
        while not self._stopping.is_set() and not cache.too_large:
            if self._moved.wait(_LOOK_S):
                self._moved.clear()
                started_s = time.monotonic()
                self._take(cache)
                taken_s = time.monotonic() - started_s
                size_s = self.state.size_bytes / _BYTES_PER_S
                pause_s = max(_SETTLE_S, taken_s * _IDLE_SHARE, size_s)
                self._stopping.wait(pause_s)
            self._check_health(informer)

    def _take(self, cache: "_Cache") -> None:
        body = cache.body()
        if body is None:
            return
        projections = self._entry.spec.projections
        values, problem = resource_values(self._name, body, projections)
        self._set_state(
            EntryState(values, ready=not problem, message=problem, settled=True)
        )

    def _report_trouble(self, message: str) -> None:
        self._set_state(replace(self.state, ready=False, message=message, settled=True))

    def _check_health(self, informer: Informer[bytes]) -> None:
        """Report a failing watch: the listed data stays in use, but can be stale."""
        state = self.state
        if informer.failures >= _FAILURES_MAX:
            self._report_trouble(f"the data may be old: {informer.last_error}")
        elif state.message.startswith("the data may be old"):
            self._moved.set()


class _Cache:
    """An informer with a bound on the total size of its objects."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str,
        moved: Callable[[], None],
    ) -> None:
        self._resource = resource
        self._moved = moved
        self._since: tuple[int, int] = (0, 0)
        self._taken = 0
        self.too_large = False
        scope = WatchScope(resource=resource, namespace=namespace)
        self.informer: Informer[bytes] = Informer(
            client, scope, self._project, pause_s_max=_AGAIN_S_MAX
        )
        self.informer.on_change(self._changed)

    def body(self) -> bytes | None:
        """Return all objects as one JSON list, None if they are too large."""
        objects = self.informer.snapshot()
        if sum(map(len, objects.values())) > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
            self._refuse()
            return None
        return b"[%b]" % b",".join(objects[key] for key in sorted(objects))

    def _refuse(self) -> None:
        self.too_large = True
        self._moved()

    def _changed(self, _key: tuple[str, str]) -> None:
        self._taken = 0
        self._moved()

    def _project(self, raw: msgspec.Raw) -> bytes:
        """Return the object unchanged, and add up the size of the list.

        Raises: KubeRefused if a list is too large, which stops it before it is stored.
        """
        since = (self.informer.lists, self.informer.failures)
        if since != self._since:
            self._since, self._taken = since, 0
        document = msgspec.json.decode(raw, type=dict[str, Json])
        # K8S: items of a list carry neither kind nor apiVersion.
        document.update(kind=self._resource.kind, apiVersion=self._resource.api_version)
        # PERF: managed fields take half of an object, and no policy reads them.
        with suppress(KeyError, TypeError):
            del document["metadata"]["managedFields"]
        encoded = msgspec.json.encode(document)
        self._taken += len(encoded)
        if self._taken > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
            self._refuse()
            raise KubeRefused("leader.global_context", TOO_LARGE)
        return encoded
