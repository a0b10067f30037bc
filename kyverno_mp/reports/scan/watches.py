"""Watch the objects of one kind, and feed changed objects to the evaluators.

Room: reports. Takes: a Resource, a Feed. Gives: KindWatch. Next:
reports/scan/coordinator.py. May touch: the API server through kube; an informer's
thread.
Source: docs/behaviour/controllers 6.3 (hash of a resource); docs/pools.md 4.

Objects are not kept, only their uid and a digest of the parts that rules can read.
KYVERNO: a change of only the status, or of a Pod's node, is ignored.
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
"""K8S: objects from a watch contain kind and apiVersion, objects from a list do not."""
_IGNORED_METADATA: Final = frozenset({"resourceVersion", "managedFields", "generation"})
_NODE: Final = b'"nodeName"'
_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""PERF: the values are not decoded; 10 us for a Pod."""


class Known(msgspec.Struct, frozen=True):
    """The data kept about an object."""

    uid: str
    digest: bytes


class KindWatch:
    """The objects of one resource, as the informer's thread delivers them."""

    def __init__(
        self, client: Client, resource: Resource, feed: Feed, clock: Clock
    ) -> None:
        self.resource = resource
        self._feed = feed
        self._clock = clock
        self._known: dict[Key, Known] = {}
        self._stopped = False
        self._is_listing = False
        # A closed feed releases a waiting informer; the watch is stopped then.
        self.informer: Informer[bool] = Informer(
            client,
            WatchScope(resource=resource),
            self._take,
            pause_s_max=PAUSE_S_MAX,
        )
        self.informer.on_change(self._forget_gone)
        self.informer.on_list(self._begin_list)
        self.informer.on_notified(self._end_list)

    def __len__(self) -> int:
        return len(self._known)

    def start(self) -> None:
        """Start the thread."""
        self.informer.start()

    def stop(self) -> None:
        """Stop the thread; another watch may follow the objects from now on."""
        self._stopped = True
        self.informer.stop()

    def get(self, key: Key) -> Known | None:
        """Return the data kept about an object."""
        return self._known.get(key)

    def is_current(self, key: Key, uid: str, digest: bytes) -> bool:
        """Return whether the object is known to be unchanged."""
        entry = None if self._stopped else self._known.get(key)
        return entry is not None and entry.uid == uid and entry.digest == digest

    def evaluate(
        self,
        raw: bytes | msgspec.Raw,
        since_s: float,
        only_for: Callable[[Key], Keys | None] = lambda _report: None,
    ) -> None:
        """Feed an unchanged object that was read by a list.

        ``since_s``: when policies or data changed. ``only_for``: returns the rules to
        evaluate, by the key of the report.

        A changed object is skipped, because the watch delivers it, too, or has already
        delivered a newer version.
        """
        key, entry = _read(raw)
        if self._known.get(key) == entry:
            only = only_for((key[0], entry.uid))
            self._put(key, entry, raw, since_s, only, is_change=False)

    def _take(self, raw: msgspec.Raw) -> bool:
        key, entry = _read(raw)
        if self._known.get(key) != entry:
            # Set first, because an answer is compared with it.
            self._known[key] = entry
            now_s = self._clock.monotonic_s()
            self._put(key, entry, raw, now_s, None, is_change=True)
        return True

    def _put(
        self,
        key: Key,
        entry: Known,
        raw: bytes | msgspec.Raw,
        since_s: float,
        only: Keys | None,
        *,
        is_change: bool,
    ) -> None:
        uid, digest = entry.uid, entry.digest
        content = bytes(raw)
        item = Item(self, key, uid, digest, content, since_s, is_change, only)
        self._feed.put(item)

    def _forget_gone(self, key: Key) -> None:
        if self.informer.get(key) is None:
            self._known.pop(key, None)

    def _begin_list(self) -> None:
        self._is_listing = True

    def _end_list(self) -> None:
        """Forget objects of lists that failed or restarted: they may be gone since."""
        if self._is_listing:
            self._is_listing = False
            for key in self._known.keys() - self.informer.snapshot().keys():
                del self._known[key]


def _read(raw: bytes | msgspec.Raw) -> tuple[Key, Known]:
    metadata: ObjectMeta = IDENTITY.decode(raw).metadata
    # PERF: few namespaces, many objects.
    key = (sys.intern(metadata.namespace), metadata.name)
    return key, Known(metadata.uid, content_digest(raw))


def content_digest(raw: bytes | msgspec.Raw) -> bytes:
    """Return a digest of the parts that rules can read. Raises: DecodeError."""
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
