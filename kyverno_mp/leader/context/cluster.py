"""Maintain all GlobalContextEntries of a cluster, each independently.

Room: leader. Takes: a Client, the calls of egress/. Gives: the values of the segment
``globalcontext``, the state of each entry. Next: leader/cluster.py publishes,
controllers/global_context_status.py writes the states to the API server.
May touch: threads, the API server through kube's informers and egress/.
Source: docs/behaviour/controllers 11.1; docs/behaviour/lessons 3.15 (one entry must not
stop others).
"""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from kyverno_mp.errors import InputError
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.context.calls import CallSource, Fetch
from kyverno_mp.leader.context.entries import failed_values, opened_values
from kyverno_mp.leader.context.resources import ResourceSource
from kyverno_mp.leader.context.sources import EntrySource, EntryState
from kyverno_mp.limits import GLOBAL_CONTEXT_BYTES_MAX
from kyverno_mp.policy.checks.global_context import check_global_context
from kyverno_mp.policy.documents.global_context_entry import (
    OPENED_TO,
    GlobalContextEntry,
)
from kyverno_mp.policy.reading.decode import decode

ENTRIES: Final = Resource(
    group="kyverno.io",
    version="v2beta1",
    plural="globalcontextentries",
    kind="GlobalContextEntry",
    namespaced=False,
)
_BYTES_PER_S: Final = 16 * 1024 * 1024
"""The publication budget for all entries together, which limits repeated publications.
"""
_FIRST_S: Final = 3.0
"""Policies wait at most this long for the first data of the entries."""
_FULL: Final = "there are more than {} entries (KYVERNO_MP_GLOBAL_CONTEXT_ENTRIES_MAX)"
_NO_ROOM: Final = (
    f"all entries together have more than {GLOBAL_CONTEXT_BYTES_MAX} bytes; this one is"
    " left out"
)
State = tuple[bool, str, datetime | None]
"""Whether an entry can be read, if not, why, and when it was last refreshed."""


class _Refused:
    """The source of an entry that was rejected."""

    def __init__(self, name: str, message: str) -> None:
        self.state = EntryState(
            failed_values(name, message), message=message, settled=True
        )

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def retry_now(self) -> None:
        """Do nothing."""


class ClusterGlobalContext:
    """The entries and their sources; call ``poll`` from one thread only."""

    def __init__(self, client: Client, fetch: Fetch, entries_max: int) -> None:
        """``entries_max``: further entries are rejected, and retried."""
        self._entries_max = entries_max
        self._client = client
        self._fetch = fetch
        self.informer: Informer[bytes] = Informer(
            client, WatchScope(resource=ENTRIES), _spec_text
        )
        self.informer.on_change(self._note)
        self._state_moved: Callable[[], None] = lambda: None
        self._entries_moved = threading.Event()
        self._data_moved = threading.Event()
        self._sources: dict[str, tuple[bytes, EntrySource]] = {}
        self._opened: dict[str, Mapping[str, bytes]] = {}
        """Entry -> the values that open it to namespaces."""
        self._left_out: frozenset[str] = frozenset()
        self._started_s = time.monotonic()
        self._next_s = 0.0

    def on_state(self, handler: Callable[[], None]) -> None:
        """Call ``handler``, in any thread, when an entry's readability changes."""
        self._state_moved = handler

    def retry_now(self) -> None:
        """Retry resources that were not served; thread-safe."""
        for _, source in list(self._sources.values()):
            source.retry_now()

    @property
    def has_entries(self) -> bool:
        """Return whether there are entries, whose data changes at any time."""
        return bool(self._sources) or self._entries_moved.is_set()

    @property
    def is_settled(self) -> bool:
        """Return whether to publish policies: data is complete, or takes too long."""
        if time.monotonic() - self._started_s > _FIRST_S:
            return True
        if not self.informer.synced:
            return self.informer.failures > 0
        self._take_entries()
        return all(source.state.settled for _, source in self._sources.values())

    def poll(self) -> bool:
        """Follow changes of the entries; return whether data must be published."""
        self._take_entries()
        return self._data_moved.is_set() and time.monotonic() >= self._next_s

    def values(self) -> Mapping[str, bytes]:
        """Return the values of all entries. Cost: one pass over the entries.

        The smallest entries come first, so that a huge entry can displace only itself.
        """
        self._data_moved.clear()
        states = {name: source.state for name, (_, source) in self._sources.items()}
        values: dict[str, bytes] = {}
        left_out = set()
        room = GLOBAL_CONTEXT_BYTES_MAX
        for name in sorted(states, key=lambda name: (states[name].size_bytes, name)):
            size = states[name].size_bytes
            if size > room:
                left_out.add(name)
                values.update(failed_values(name, _NO_ROOM))
                continue
            room -= size
            values.update(states[name].values)
        for name in states:
            values.update(self._opened.get(name, {}))
        self._left_out = frozenset(left_out)
        used = GLOBAL_CONTEXT_BYTES_MAX - room
        self._next_s = time.monotonic() + used / _BYTES_PER_S
        return values

    def states(self) -> dict[str, State]:
        """Return the state of each entry; thread-safe."""
        states: dict[str, State] = {}
        for name, (_, source) in list(self._sources.items()):
            state = source.state
            if name in self._left_out:
                states[name] = (False, _NO_ROOM, state.refreshed)
            elif state.settled:
                states[name] = (state.ready, state.message, state.refreshed)
        return states

    def stop(self) -> None:
        """Stop all threads."""
        self.informer.stop()
        for _, source in self._sources.values():
            source.stop()

    def _note(self, _key: Key) -> None:
        self._entries_moved.set()

    def _note_state(self, before: EntryState, after: EntryState) -> None:
        if (before.values, before.settled) != (after.values, after.settled):
            self._data_moved.set()
        was, now = (
            (state.settled, state.ready, state.message) for state in (before, after)
        )
        if was != now:
            self._state_moved()

    def _take_entries(self) -> None:
        if not self._entries_moved.is_set():
            return
        self._entries_moved.clear()
        documents = {
            name: document for (_, name), document in self.informer.snapshot().items()
        }
        for name in [name for name in self._sources if name not in documents]:
            self._sources.pop(name)[1].stop()
            self._opened.pop(name, None)
            self._data_moved.set()
        # Entries that did not fit are retried whenever entries change.
        for name in [
            name for name, (document, _) in self._sources.items() if not document
        ]:
            del self._sources[name]
        for name, document in sorted(documents.items()):
            current = self._sources.get(name)
            if current is not None and current[0] == document:
                continue
            if current is not None:
                current[1].stop()
            self._data_moved.set()
            if current is None and len(self._sources) >= self._entries_max:
                reason = _FULL.format(self._entries_max)
                self._sources[name] = (b"", _Refused(name, reason))
                continue
            source = self._source(name, document)
            self._sources[name] = (document, source)
            source.start()

    def _source(self, name: str, document: bytes) -> EntrySource:
        self._opened.pop(name, None)
        try:
            entry = decode(msgspec.json.decode(document))
        except InputError as error:
            return _Refused(name, error.message)
        assert isinstance(entry, GlobalContextEntry)
        problem = next(iter(check_global_context(entry)), None)
        if problem is not None:
            return _Refused(name, str(problem))
        self._opened[name] = opened_values(entry)
        if entry.spec.kubernetes_resource is not None:
            return ResourceSource(entry, self._client, self._note_state)
        return CallSource(entry, self._fetch, self._note_state)


def _spec_text(raw: msgspec.Raw) -> bytes:
    """Return the fields that determine an entry's data; a change restarts it."""
    document = msgspec.json.decode(raw)
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    opened = {key: annotations[key] for key in (OPENED_TO,) if key in annotations}
    return msgspec.json.encode(
        {
            "apiVersion": ENTRIES.api_version,
            "kind": "GlobalContextEntry",
            "metadata": {"name": metadata["name"], "annotations": opened},
            "spec": document.get("spec"),
        }
    )
