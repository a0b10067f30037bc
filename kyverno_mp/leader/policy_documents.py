"""Follow the documents of policies and exceptions, as many as there is room for.

Room: leader. Takes: a Client, a SourceRoom. Gives: PolicyDocuments: informers of the
documents' texts, in which outlines replace what has no room.
Next: leader/cluster.py, leader/documents/source_room.py. May touch: the API server
through kube's informers, which run in threads; the clock.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.documents.source_room import SourceRoom
from kyverno_mp.leader.outline import MARK, outline_of
from kyverno_mp.limits import SOURCES_READ_AGAIN_S
from kyverno_mp.policy.cel_kinds.generated import kept_status
from kyverno_mp.telemetry.log import fields

IDLE_FIELDS: Final = ("managedFields", "resourceVersion", "selfLink")
_log = logging.getLogger(__name__)


class PolicyDocuments:
    """The informers of all kinds of policies and exceptions."""

    def __init__(
        self, room: SourceRoom, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._room = room
        self._monotonic_s = monotonic_s
        self._informers: dict[str, Informer[bytes]] = {}
        self._unread: set[tuple[str, str, str]] = set()
        self._read_s = -SOURCES_READ_AGAIN_S

    def follow(self, client: Client, resource: Resource) -> Informer[bytes]:
        """Return the informer of a kind, not yet started."""
        name = f"{resource.plural}.{resource.group}"
        scope = WatchScope(resource=resource)
        informer = Informer(client, scope, partial(self._kept, name))
        self._informers[name] = informer

        def changed(key: Key) -> None:
            if informer.get(key) is None:
                self._room.forget((name, *key))

        informer.on_change(changed)
        return informer

    def balance(self) -> Mapping[Informer[bytes], set[Key]]:
        """Reduce and read again what the room requires; return the reduced keys."""
        drop, read = self._room.balance()
        reduced: dict[Informer[bytes], set[Key]] = {}
        for name, *rest in drop:
            informer, key = self._informers[name], (rest[0], rest[1])
            content = informer.get(key)
            # A version that arrived since was taken anew, and counts.
            if content is None or self._room.keeps((name, *key)):
                continue
            outline = outline_of(msgspec.json.decode(content), len(content))
            if informer.replace(key, content, outline):
                reduced.setdefault(informer, set()).add(key)
        if drop:
            _log.warning("documents without room", extra=fields(count=len(drop)))
        self._read_again(read)
        return reduced

    def _read_again(self, keys: frozenset[tuple[str, str, str]]) -> None:
        self._unread |= keys
        now_s = self._monotonic_s()
        if not self._unread or now_s < self._read_s + SOURCES_READ_AGAIN_S:
            return
        self._read_s = now_s
        for name, informer in self._informers.items():
            unread_keys = {unread[1:] for unread in self._unread if unread[0] == name}
            if unread_keys:
                informer.reread(frozenset(unread_keys))
        self._unread.clear()

    def _kept(self, name: str, raw: msgspec.Raw) -> bytes:
        document = _projected(raw)
        content = msgspec.json.encode(document)
        metadata = document["metadata"]
        key = name, metadata.get("namespace", ""), metadata["name"]
        if self._room.takes(key, len(content)):
            return content
        return outline_of(document, len(content))


def _projected(raw: msgspec.Raw) -> dict[str, Any]:
    """Project a policy to the fields that affect evaluation."""
    document: dict[str, Any] = msgspec.json.decode(raw)
    status = kept_status(document.get("kind", ""), document.pop("status", None))
    if status is not None:
        document["status"] = status
    document.pop(MARK, None)
    for name in IDLE_FIELDS:
        document["metadata"].pop(name, None)
    return document
