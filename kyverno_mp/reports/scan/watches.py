"""Watch the objects of one kind, and feed those that changed to the evaluators.

Room: reports. Takes: a Resource, a Feed. Gives: KindWatch. Next:
reports/scan/coordinator.py. May touch: the API server through kube; an informer's
thread.
Source: docs/behaviour/controllers 6.3 (hash of a resource); docs/pools.md 4.

Objects are never kept: of each, its uid and a digest of what rules can read. KYVERNO: a
change of the status alone, or of the node of a Pod, changes nothing.
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.kube.cache import PAUSE_S_MAX, Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import IDENTITY, ObjectMeta, WatchScope
from kyverno_mp.queues.clock import Clock
from kyverno_mp.reports.feed import Feed, Item, Keys

_DIGEST_BYTES: Final = 8
_IGNORED: Final = frozenset({"apiVersion", "kind", "metadata", "status", "scale"})
"""K8S: a watch gives kind and apiVersion of an object, a list does not."""
_IGNORED_METADATA: Final = frozenset({"resourceVersion", "managedFields", "generation"})
_NODE: Final = b'"nodeName"'
_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""PERF: the values stay bytes; 10 us for a Pod."""


class Known(msgspec.Struct, frozen=True):
    """What is kept of an object."""

    uid: str
    digest: bytes


class KindWatch:
    """The objects of one resource; the informer's thread brings them."""

    def __init__(
        self, client: Client, resource: Resource, feed: Feed, clock: Clock
    ) -> None:
        self.resource = resource
        self._feed = feed
        self._clock = clock
        self._known: dict[Key, Known] = {}
        # A closed feed ends what waits in it; the watch is stopped then.
        self.informer: Informer[bool] = Informer(
            client,
            WatchScope(resource=resource),
            self._take,
            pause_s_max=PAUSE_S_MAX,
        )
        self.informer.on_change(self._forget_gone)

    def __len__(self) -> int:
        return len(self._known)

    def start(self) -> None:
        """Start the thread."""
        self.informer.start()

    def stop(self) -> None:
        """End the thread."""
        self.informer.stop()

    def get(self, key: Key) -> Known | None:
        """Return what is known of an object."""
        return self._known.get(key)

    def is_current(self, key: Key, uid: str, digest: bytes) -> bool:
        """Return whether the object is still as it was."""
        known = self._known.get(key)
        return known is not None and known.uid == uid and known.digest == digest

    def evaluate(
        self,
        raw: bytes | msgspec.Raw,
        since_s: float,
        only_for: Callable[[Key], Keys | None] = lambda _report: None,
    ) -> None:
        """Feed an object although it did not change; a list has read it.

        ``since_s``: when policies or data changed. ``only_for``: which rules are to be
        evaluated, by the key of the report.

        An object that differs from what is known is left to the watch, which brings it
        too, or has brought a newer one.
        """
        key, known = _read(raw)
        if self._known.get(key) == known:
            only = only_for((key[0], known.uid))
            self._put(key, known, raw, since_s, only, is_change=False)

    def _take(self, raw: msgspec.Raw) -> bool:
        key, known = _read(raw)
        if self._known.get(key) != known:
            # First, so that an answer finds it.
            self._known[key] = known
            now_s = self._clock.monotonic_s()
            self._put(key, known, raw, now_s, None, is_change=True)
        return True

    def _put(
        self,
        key: Key,
        known: Known,
        raw: bytes | msgspec.Raw,
        since_s: float,
        only: Keys | None,
        *,
        is_change: bool,
    ) -> None:
        uid, digest = known.uid, known.digest
        content = bytes(raw)
        item = Item(self, key, uid, digest, content, since_s, is_change, only)
        self._feed.put(item)

    def _forget_gone(self, key: Key) -> None:
        if self.informer.get(key) is None:
            self._known.pop(key, None)


def _read(raw: bytes | msgspec.Raw) -> tuple[Key, Known]:
    metadata: ObjectMeta = IDENTITY.decode(raw).metadata
    # PERF: few namespaces, many objects.
    key = (sys.intern(metadata.namespace), metadata.name)
    return key, Known(metadata.uid, content_digest(raw))


def content_digest(raw: bytes | msgspec.Raw) -> bytes:
    """Return a digest of what rules can read of an object. Raises: DecodeError."""
    parts = _PARTS.decode(raw)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, value in _PARTS.decode(parts.get("metadata", b"{}")).items():
        if name not in _IGNORED_METADATA:
            digest.update(name.encode())
            digest.update(bytes(value))
    for name, value in parts.items():
        if name not in _IGNORED:
            digest.update(name.encode())
            digest.update(_without_node(value) if name == "spec" else bytes(value))
    return digest.digest()


def _without_node(spec: msgspec.Raw) -> bytes:
    if _NODE not in bytes(spec):
        return bytes(spec)
    parts = _PARTS.decode(spec)
    parts.pop("nodeName", None)
    return msgspec.json.encode(parts)
