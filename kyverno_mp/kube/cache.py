"""Cache a projection of all objects of a resource, kept up to date by a watch.

Room: kube. Takes: a WatchScope, a projection. Gives: Informer: objects by key, and keys
that changed. Next: leader/cluster.py, controllers. May touch: the API server through
kube/watch.py, one thread, the clock, randomness.
Source: client-go's reflector and shared informer; docs/architecture.md 3 (events are
hints).

The cache survives every failure. A dropped, silent or rejected watch continues where it
stopped. 410 Gone causes a new list, after which handlers get the keys that differ.
Handlers get keys, never objects: they read the cache when they process a key.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from kyverno_mp.errors import DeadlinePassed, DependencyError, KubeExpired
from kyverno_mp.kube.connection import Connection
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import (
    IDENTITY,
    SILENCE_S,
    Change,
    WatchScope,
    list_all,
    watch,
)
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
T = TypeVar("T")
Project = Callable[[msgspec.Raw], T | None]
"""Returns the part of an object to keep; None = ignore the object."""
_PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 30.0
_RELIST_AFTER: Final = 4
"""Number of failures after which a server error causes a new list."""
NOT_SERVED: Final = "kube.not_found"
_FORBIDDEN: Final = "kube.forbidden"
_ANSWERS: Final = frozenset({"kube.throttled", "kube.server"})
"""Codes of failures that the server reported, possibly with a Retry-After."""
_CALLS_MAX: Final = 2
"""How often handlers are called with a key if one of them fails. An error that stays
must not cause lists for ever.
"""
_BRIEF_S: Final = 1.0
"""A watch that ends sooner and without any event has failed."""


class Informer(Generic[T]):
    """The cache of one scope, updated by one thread after ``start``."""

    def __init__(
        self,
        client: Client,
        scope: WatchScope,
        project: Project[T],
        *,
        silence_s: float = SILENCE_S,
        pause_s_max: float = PAUSE_S_MAX,
    ) -> None:
        """``pause_s_max``: the longest pause between failing attempts."""
        self._client = client
        self.scope = scope
        self._project = project
        self._silence_s = silence_s
        self._pause_s_max = pause_s_max
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._objects: dict[Key, tuple[str, T]] = {}
        self._version = ""
        self._handlers: list[Callable[[Key], None]] = []
        self._progress_callbacks: list[Callable[[], None]] = []
        self._list_callbacks: list[Callable[[], None]] = []
        self._health_callbacks: list[Callable[[], None]] = []
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._reread: frozenset[Key] = frozenset()
        """Keys whose objects are read again, see ``reread``."""
        self._owed: dict[Key, int] = {}
        """Changed keys that not all handlers have got, and how often one failed."""
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self.last_message_ns = 0
        """Monotonic time of the last message from the server."""
        self.lists = 0
        self.failures = 0
        """Failures since the last success; 0 = healthy."""
        self._attempts = 0
        """Attempts in a row without any message; the pause grows with them."""
        self._is_silent = False
        """Whether the last watch was accepted but stayed silent; then acceptance proves
        nothing.
        """
        self.last_error = ""
        self.last_code = ""
        self._retry_after_s = 0.0
        self.notified_version = ""
        """The handlers were called for all changes up to this resource version."""
        self.malformed = 0
        """Objects skipped because they do not have the structure of their kind."""

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call ``handler`` with each key that changed, in the informer's thread."""
        self._handlers.append(handler)

    def on_notified(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the handlers and the new ``notified_version``."""
        self._progress_callbacks.append(callback)

    def on_list(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` before each list, in the informer's thread."""
        self._list_callbacks.append(callback)

    def on_health(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each failure, and after the end of failures."""
        self._health_callbacks.append(callback)

    def start(self) -> None:
        """Start the thread."""
        name = f"informer-{self.scope.resource.plural}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and a running watch."""
        self._stopping.set()
        self._awake.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def retry_now(self) -> None:
        """Retry now if the last attempt failed; any thread may call it."""
        self._awake.set()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait until all objects were listed once; return False on time-out."""
        return self._synced.wait(timeout_s)

    @property
    def synced(self) -> bool:
        """Whether all objects were listed at least once."""
        return self._synced.is_set()

    @property
    def is_absent(self) -> bool:
        """Whether the API server does not serve the kind; its definition may exist."""
        return bool(self.failures) and self.last_code == NOT_SERVED

    @property
    def is_refused(self) -> bool:
        """Whether the account was never allowed to list the objects."""
        return not self.synced and self.last_code == _FORBIDDEN

    def get(self, key: Key) -> T | None:
        """Return the projection of one object."""
        with self._lock:
            entry = self._objects.get(key)
        return entry[1] if entry else None

    def entry(self, key: Key) -> tuple[str, T] | None:
        """Return the resource version of one object and its projection."""
        with self._lock:
            return self._objects.get(key)

    def version_of(self, key: Key) -> str:
        """Return the resource version of one object, "" if it does not exist."""
        with self._lock:
            entry = self._objects.get(key)
        return entry[0] if entry else ""

    def replace(self, key: Key, before: T, after: T) -> bool:
        """Replace a projection; return False if it is no longer ``before``."""
        with self._lock:
            version, value = self._objects.get(key, ("", None))
            if value is not before:
                return False
            self._objects[key] = (version, after)
            return True

    def reread(self, keys: frozenset[Key]) -> None:
        """List again soon, and call the handlers for these keys; any thread."""
        with self._lock:
            self._reread |= keys
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def snapshot(self) -> dict[Key, T]:
        """Return all current objects. Cost: one pass over all keys."""
        with self._lock:
            return {key: value for key, (_, value) in self._objects.items()}

    def __len__(self) -> int:
        return len(self._objects)

    def _run(self) -> None:
        while not self._stopping.is_set():
            started_ns = time.monotonic_ns()
            try:
                if not self._version or self._owed or self._reread:
                    self._list()
                received = self._watch()
            except KubeExpired as error:
                self._version = ""
                self._failed(error)
            except DependencyError as error:
                self._failed(error)
            except Exception:  # noqa: BLE001 - a dead thread would stop the cache
                # The handlers get the key of the change again after the new list.
                _log.exception("%s: unexpected error, listing again", self.scope.path)
                self._version = ""
                self._count()
            else:
                lasted_s = (time.monotonic_ns() - started_ns) / 1e9
                if received or lasted_s > _BRIEF_S:
                    self._attempts = 0
                    continue
                self._count()
            self._awake.wait(self._pause_s())
            self._awake.clear()

    def _count(self) -> None:
        self.failures += 1
        self._attempts += 1
        self._notify_health()

    def _succeed(self) -> None:
        if self.failures:
            self.failures = 0
            self._notify_health()

    def _failed(self, error: DependencyError) -> None:
        if self._stopping.is_set():
            return
        # Readers look at the failures first.
        self.last_error, self.last_code = error.message, error.code
        self._count()
        self._is_silent = isinstance(error, DeadlinePassed)
        if error.code in _ANSWERS:
            self._retry_after_s = error.retry_after_s
        if error.code == "kube.server" and self.failures % _RELIST_AFTER == 0:
            # K8S: after etcd is restored from a backup, our version may be in the
            # future. The server then answers every watch with a time-out.
            self._version = ""
        _log.info("watch ended: %s", error.message)

    def _pause_s(self) -> float:
        """Return the delay before the next attempt: the Retry-After plus a back-off."""
        retry_after_s, self._retry_after_s = self._retry_after_s, 0.0
        pause_s = min(self._pause_s_max, _PAUSE_S * float(2 ** min(self._attempts, 10)))
        return retry_after_s + pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - scatters

    def _list(self) -> None:
        objects: dict[Key, tuple[str, T]] = {}

        def take(raw: msgspec.Raw) -> None:
            metadata = IDENTITY.decode(raw).metadata
            value = self._kept(raw)
            if value is not None:
                key = (metadata.namespace, metadata.name)
                objects[key] = (metadata.resource_version, value)

        for callback in self._list_callbacks:
            callback()
        with self._lock:
            again, self._reread = self._reread, frozenset()
        version = list_all(self._client, self.scope, take, restart=objects.clear)
        with self._lock:
            before, self._objects = self._objects, objects
        again &= objects.keys()
        removed = [key for key in before if key not in objects]
        moved = [
            key
            for key, (stamp, _) in objects.items()
            if key not in before or before[key][0] != stamp or key in again
        ]
        self._version = version
        self.lists += 1
        self.last_message_ns = time.monotonic_ns()
        self._synced.set()
        self._notify((*removed, *moved))
        self.notified_version = version
        self._notify_progress()

    def _watch(self) -> bool:
        """Follow one watch until it ends; return whether the server sent anything."""
        received = False
        opened = watch(self._client, self.scope, self._version, self._silence_s)
        with opened as (connection, changes):
            self._connection = connection
            if not self._is_silent:
                # Changes may be rare, so an accepted watch counts as a success.
                self._succeed()
            try:
                for change in () if self._stopping.is_set() else changes:
                    received = True
                    self._is_silent = False
                    self.last_message_ns = time.monotonic_ns()
                    self._attempts = 0
                    self._succeed()
                    self._take(change)
                    if self._stopping.is_set():
                        break
            finally:
                self._connection = None
        return received

    def _take(self, change: Change) -> None:
        metadata = IDENTITY.decode(change.object).metadata
        self._version = metadata.resource_version or self._version
        if change.type == "BOOKMARK":
            self.notified_version = self._version
            return
        key = (metadata.namespace, metadata.name)
        value = None if change.type == "DELETED" else self._kept(change.object)
        with self._lock:
            if value is not None:
                self._objects[key] = (metadata.resource_version, value)
            elif self._objects.pop(key, None) is None:
                self.notified_version = self._version
                return
        self._notify((key,))
        self.notified_version = self._version
        self._notify_progress()

    def _kept(self, raw: msgspec.Raw) -> T | None:
        """Project an object; skip a malformed one with a warning."""
        try:
            return self._project(raw)
        except UNDECODABLE as error:
            self.malformed += 1
            _log.warning("%s: skipped an object: %s", self.scope.path, error)
            return None

    def _notify(self, keys: Iterable[Key]) -> None:
        """Call the handlers for changed keys, and for those still owed."""
        for key in keys:
            # The last change comes last.
            self._owed.pop(key, None)
            self._owed[key] = 0
        for key in list(self._owed):
            try:
                for handler in self._handlers:
                    handler(key)
            except BaseException:
                failures = self._owed.pop(key) + 1
                if failures < _CALLS_MAX:
                    self._owed[key] = failures
                raise
            del self._owed[key]

    def _notify_progress(self) -> None:
        for callback in self._progress_callbacks:
            callback()

    def _notify_health(self) -> None:
        for callback in self._health_callbacks:
            callback()


def whole(raw: msgspec.Raw) -> bytes:
    """Project an object to its JSON, copied out of the page."""
    return bytes(raw)
