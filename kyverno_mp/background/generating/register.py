"""Record which kinds synchronised GeneratingPolicies generate, and what to delete when.

Room: background. Takes: the objects of a policy before they are written. Gives:
Register, kept in a ConfigMap. Next: background/generating/run.py,
background/generating/events.py, background/generating/watches.py. May touch: the API
server through kube/apply.py.
Source: docs/behaviour/cel 12d (generating); docs/background.md.

The kinds are known only when the expressions have run. Without the record, a replica
that takes over would watch nothing, and what a deleted policy generated would stay.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

NAME: Final = "kyverno-mp-background"
_CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap"
)
_KEY: Final = "generating-policies.json"


class GeneratedKind(NamedTuple):
    """A kind of generated objects; ``is_cloned``: some have a source."""

    api_version: str
    kind: str
    is_cloned: bool = False


class Entry(msgspec.Struct, frozen=True):
    """What is recorded for one policy. ``deletes``: its objects go with it."""

    deletes: bool = False
    kinds: tuple[GeneratedKind, ...] = ()

    def with_kinds(self, kinds: Iterable[GeneratedKind]) -> "Entry":
        """Return the record with more kinds."""
        found = {(one.api_version, one.kind): one.is_cloned for one in self.kinds}
        for one in kinds:
            key = (one.api_version, one.kind)
            found[key] = found.get(key, False) or one.is_cloned
        merged = tuple(GeneratedKind(*key, cloned) for key, cloned in found.items())
        return Entry(self.deletes, merged)


NOTHING: Final = Entry()
_Entries = dict[str, Entry]
_DECODER: Final = msgspec.json.Decoder(_Entries)


class Register:
    """The record, read once per term; threads may share it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        guard: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called after each change of the record."""
        self._objects = Objects(client, guard)
        self._key = (namespace, NAME)
        self._lock = threading.Lock()
        self._entries: _Entries | None = None
        self._on_change = on_change

    def policies(self) -> list[str]:
        """Return the recorded policies. Raises: DependencyError."""
        with self._lock:
            return sorted(self._read())

    def of(self, policy: str) -> Entry:
        """Return what is recorded for a policy. Raises: DependencyError."""
        with self._lock:
            return self._read().get(policy, NOTHING)

    def kinds(self) -> set[GeneratedKind]:
        """Return what is recorded for any policy, one row for each kind.

        Raises: DependencyError.
        """
        with self._lock:
            entries = list(self._read().values())
        merged = NOTHING
        for entry in entries:
            merged = merged.with_kinds(entry.kinds)
        return set(merged.kinds)

    def record(self, policy: str, entry: Entry | None) -> None:
        """Replace a policy's record; no call when it stays the same.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            changed = self._replace(policy, entry)
        if changed:
            self._on_change()

    def add(
        self, policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        """Record kinds before their first object; return whether some were not there.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            known = self._read().get(policy)
            before = known or Entry(deletes)
            wanted = before.with_kinds(kinds)
            if known == wanted:
                return False
            self._replace(policy, wanted)
        self._on_change()
        return True

    def _replace(self, policy: str, entry: Entry | None) -> bool:
        known = self._read()
        if known.get(policy) == entry:
            return False
        changed = {name: one for name, one in known.items() if name != policy}
        if entry is not None:
            changed[policy] = entry
        try:
            self._write(changed)
        except BaseException:
            # Whether it was written is not known.
            self._entries = None
            raise
        self._entries = changed
        return True

    def _read(self) -> _Entries:
        if self._entries is None:
            found = self._objects.find(_CONFIG_MAPS, self._key)
            text = ((found or {}).get("data") or {}).get(_KEY, "{}")
            self._entries = _decoded(text)
        return self._entries

    def _write(self, entries: _Entries) -> None:
        text = msgspec.json.encode(entries, order="sorted").decode()

        def edit(raw: Json) -> Json:
            return {**raw, "data": {**(raw.get("data") or {}), _KEY: text}}

        if self._objects.change(_CONFIG_MAPS, self._key, edit) is None:
            namespace, name = self._key
            raw: Json = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {_KEY: text},
            }
            self._objects.create(_CONFIG_MAPS, raw)


def _decoded(text: str) -> _Entries:
    """Read the record. One that was damaged by hand deletes nothing."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return {}
