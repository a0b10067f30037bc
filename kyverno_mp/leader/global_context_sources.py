"""Maintain the data of one GlobalContextEntry with an informer or repeated calls.

Room: leader. Takes: an entry, a Client or the calls of egress/. Gives: EntryState, the
entry's present state. Next: leader/global_context_cluster.py.
May touch: threads, the API server, services, the clock, randomness.
Source: docs/behaviour/controllers 1.5, 11.1-11.3; Kyverno pkg/globalcontext.

Each entry has its own threads, so that a slow, failing or huge entry delays no other.
Its data is bounded; a larger entry is an error until it fits again.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from kyverno_mp.errors import DependencyError, Error, KubeRefused
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.global_context import (
    NO_DATA,
    call_values,
    failed_values,
    resource_values,
)
from kyverno_mp.leader.objects import base_path
from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRY_BYTES_MAX
from kyverno_mp.policy.global_context_entry import GlobalContextEntry
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.duration import parse_duration
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
Fetch = Callable[[ApiRequest, int], bytes]
"""Makes one call before a deadline; egress/api_calls.LiveCalls.fetch."""
_CALL_NS_MAX: Final = 30 * 10**9
_REFRESH_S_MIN: Final = 1.0
"""A shorter refreshInterval would be an attack on the called service."""
_REFRESH_S_MAX: Final = 7 * 24 * 3600.0
_RETRY_S: Final = 0.01
_RETRY_FACTOR: Final = 5.0
_RETRY_S_MAX: Final = 60.0
_AGAIN_S_MAX: Final = 10.0
"""The longest pause between retries of a resource that is not served or readable."""
_TOO_LARGE_AGAIN_S: Final = 300.0
_SETTLE_S: Final = 0.1
_IDLE_SHARE: Final = 5
"""Computing a large entry may take this part of the interval between two runs."""
_BYTES_PER_S: Final = 8 * 1024 * 1024
"""The publication budget of a large entry that changes all the time."""
_LOOK_S: Final = 2.0
_FAILURES_TOLD: Final = 3
"""After this many failures of a watch in a row, the data counts as old."""
_TOO_LARGE: Final = (
    f"the data has more than {GLOBAL_CONTEXT_ENTRY_BYTES_MAX} bytes; a namespace, a"
    " narrower urlPath or another entry would make it less"
)


@dataclass(frozen=True, slots=True)
class EntryState:
    """The present state of an entry. ``values``: see leader/global_context.py.

    ``settled``: the first attempt has ended, with data or with an error.
    """

    values: Mapping[str, bytes]
    ready: bool = False
    message: str = "waiting for data"
    refreshed: datetime | None = None
    settled: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the size of the values in the segment."""
        return sum(map(len, self.values.values()))


class EntrySource(Protocol):
    """Maintains one entry."""

    held: EntryState

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Stop; may wait for a thread, but never for a peer."""

    def retry_now(self) -> None:
        """Retry failures now, because the API server serves other kinds than before."""


Tell = Callable[[EntryState, EntryState], None]
"""Called with the previous and the new state of an entry."""


class _Thread:
    """A thread that maintains ``held``, and reports its changes."""

    def __init__(self, entry: GlobalContextEntry, held: EntryState, told: Tell) -> None:
        self._entry = entry
        self._name = entry.metadata.name
        self.held = held
        self._told = told
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._guarded, name=f"gctx-{self._name}"[:15], daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to stop."""
        self._stopping.set()

    def retry_now(self) -> None:
        """Do nothing: the source does not depend on kinds."""

    def _run(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run()
            except Exception as error:  # noqa: BLE001 - a defect must not leave old data
                _log.exception("global context entry", extra=fields(entry=self._name))
                self._fail(f"internal error: {type(error).__name__}")
                self._stopping.wait(_AGAIN_S_MAX)

    def _hold(self, held: EntryState) -> None:
        if held.message and held.message != self.held.message:
            _log.warning(
                "global context entry",
                extra=fields(entry=self._name, problem=held.message),
            )
        before, self.held = self.held, held
        self._told(before, held)

    def _fail(self, text: str, why: str = "") -> None:
        """Make every read fail with ``text``."""
        self._hold(
            replace(
                self.held,
                values=failed_values(self._name, text),
                ready=False,
                message=why or text,
                settled=True,
            )
        )


class CallKeeper(_Thread):
    """Calls at once, and then one interval after each call has ended.

    KYVERNO: after a failure old data is not served (docs/behaviour/controllers 11.3).
    """

    def __init__(self, entry: GlobalContextEntry, fetch: Fetch, told: Tell) -> None:
        first = EntryState(failed_values(entry.metadata.name, NO_DATA))
        super().__init__(entry, first, told)
        call = entry.spec.api_call
        assert call is not None
        self._fetch = fetch
        self._attempts = call.retry_limit
        interval_ns = parse_duration(call.refresh_interval) or 0
        self._interval_s = min(_REFRESH_S_MAX, max(_REFRESH_S_MIN, interval_ns / 1e9))
        self._request = _request_of(entry)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._refresh()
            self._stopping.wait(self._interval_s)

    def _refresh(self) -> None:
        try:
            body = self._fetch_patiently()
            if len(body) > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
                self._fail(_TOO_LARGE)
                return
            values = call_values(self._name, body, self._entry.spec.projections)
        except Error as error:
            cause = error.__cause__
            why = cause.message if isinstance(cause, DependencyError) else ""
            self._fail(error.message, why)
            return
        now = datetime.now(UTC)
        self._hold(
            EntryState(values, ready=True, message="", refreshed=now, settled=True)
        )

    def _fetch_patiently(self) -> bytes:
        """Call, and retry after growing pauses. Raises: Error, the last one."""
        pause_s = _RETRY_S
        for attempt in range(1, self._attempts + 1):
            try:
                return self._fetch(self._request, time.monotonic_ns() + _CALL_NS_MAX)
            except Error:
                if attempt == self._attempts or self._stopping.is_set():
                    raise
            scattered = pause_s * random.uniform(1.0, 1.1)  # noqa: S311 - no secret
            self._stopping.wait(scattered)
            pause_s = min(_RETRY_S_MAX, pause_s * _RETRY_FACTOR)
        raise AssertionError("the last attempt returns or raises")


class ResourceKeeper(_Thread):
    """Maintains all present objects of a resource in the cluster.

    Before the first list, the entry does not exist for policies, as in upstream.
    """

    def __init__(self, entry: GlobalContextEntry, client: Client, told: Tell) -> None:
        super().__init__(entry, EntryState({}), told)
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
        """Look up the resource now; it may just have appeared or reappeared."""
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
            self._fail(_TOO_LARGE)
            self._stopping.wait(_TOO_LARGE_AGAIN_S)

    def _open(self) -> "_Cache | None":
        """Find the resource and start to watch it; None on a stop."""
        pause_s = _SETTLE_S
        while True:
            self._again.clear()
            if self._stopping.is_set():
                return None
            try:
                resource = self._found()
            except DependencyError as error:
                self._tell_trouble(error.message)
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
        """Look up the resource by its kind. Raises: DependencyError."""
        asked = self._entry.spec.kubernetes_resource
        assert asked is not None
        version = f"{asked.group}/{asked.version}" if asked.group else asked.version
        listing = self._client.get(base_path(version))
        for one in listing.get("resources") or ():
            if one.get("name") == asked.resource:
                return Resource(
                    group=asked.group,
                    version=asked.version,
                    plural=asked.resource,
                    kind=str(one.get("kind") or ""),
                    namespaced=one.get("namespaced") is True,
                )
        raise KubeRefused(
            "leader.global_context", f"{version} has no resource {asked.resource}"
        )

    def _follow(self, cache: "_Cache") -> None:
        informer = cache.informer
        while not informer.wait_synced(_SETTLE_S):
            if self._stopping.is_set() or cache.too_large:
                return
            if informer.failures:
                self._tell_trouble(informer.last_error)
        self._moved.set()
        while not self._stopping.is_set() and not cache.too_large:
            if self._moved.wait(_LOOK_S):
                self._moved.clear()
                started_s = time.monotonic()
                self._take(cache)
                taken_s = time.monotonic() - started_s
                size_s = self.held.size_bytes / _BYTES_PER_S
                pause_s = max(_SETTLE_S, taken_s * _IDLE_SHARE, size_s)
                self._stopping.wait(pause_s)
            self._tell_health(informer)

    def _take(self, cache: "_Cache") -> None:
        body = cache.body()
        if body is None:
            return
        projections = self._entry.spec.projections
        values, problem = resource_values(self._name, body, projections)
        self._hold(EntryState(values, ready=not problem, message=problem, settled=True))

    def _tell_trouble(self, text: str) -> None:
        self._hold(replace(self.held, ready=False, message=text, settled=True))

    def _tell_health(self, informer: Informer[bytes]) -> None:
        """Report a failing watch: the listed data stays in force, but may be old."""
        held = self.held
        if informer.failures >= _FAILURES_TOLD:
            self._tell_trouble(f"the data may be old: {informer.last_error}")
        elif held.message.startswith("the data may be old"):
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
        """Return all objects as one JSON list, None when they are too large."""
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
        """Keep the object as it is, and count the size of one list.

        Raises: KubeRefused when a list is too large, which stops it before it is
        stored.
        """
        since = (self.informer.lists, self.informer.failures)
        if since != self._since:
            self._since, self._taken = since, 0
        document = msgspec.json.decode(raw, type=dict[str, Json])
        # K8S: items of a list carry neither kind nor apiVersion.
        document.update(kind=self._resource.kind, apiVersion=self._resource.api_version)
        # PERF: half of an object, which no policy reads.
        with suppress(KeyError, TypeError):
            del document["metadata"]["managedFields"]
        kept = msgspec.json.encode(document)
        self._taken += len(kept)
        if self._taken > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
            self._refuse()
            raise KubeRefused("leader.global_context", _TOO_LARGE)
        return kept


def _request_of(entry: GlobalContextEntry) -> ApiRequest:
    """Return the call as written, without substitution."""
    call = entry.spec.api_call
    assert call is not None
    body = None
    if call.data or call.method == "POST":
        body = {item.key: item.value for item in call.data}
    if call.url_path:
        return ApiRequest(method=call.method, path=call.url_path, body=body)
    service = call.service
    return ApiRequest(
        method=call.method,
        url=service.url if service else "",
        headers=tuple((one.key, one.value) for one in service.headers)
        if service
        else (),
        body=body if call.method == "POST" else None,
        ca_bundle=service.ca_bundle if service else "",
    )
