"""Record the kinds that synchronised GeneratingPolicies generate.

Room: background. Takes: the objects of a policy before they are written. Gives:
Register, kept in a ConfigMap. Next: background/generating/run.py,
background/generating/events.py, background/generating/watches.py. May touch: the API
server through kube/apply.py.
Source: docs/behaviour/cel 12d (generating); docs/background.md.

The kinds are known only after the expressions have run. Without the record, a replica
that takes over would watch nothing, and the objects of a deleted policy would stay. A
kind is recorded before its first object is written, because the lease holder may be
killed between the two. The kind is watched after that write, and removed from the
record if no write succeeds.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.background.record import Record
from kyverno_mp.kube.rest import Client

_KEY: Final = "generating-policies.json"


class GeneratedKind(NamedTuple):
    """A kind of generated objects.

    ``is_cloned``: some objects have a source. ``is_planned``: possibly no object was
    ever written.
    """

    api_version: str
    kind: str
    is_cloned: bool = False
    is_planned: bool = False


class Entry(msgspec.Struct, frozen=True):
    """The record of one policy. ``deletes``: delete its objects with the policy."""

    deletes: bool = False
    kinds: tuple[GeneratedKind, ...] = ()

    def with_kinds(self, kinds: Iterable[GeneratedKind]) -> "Entry":
        """Return the record with more kinds; written ones are not reset to planned."""
        found = {one[:2]: one for one in self.kinds}
        for kind in kinds:
            known = found.get(kind[:2], kind)
            found[kind[:2]] = kind._replace(
                is_cloned=known.is_cloned or kind.is_cloned,
                is_planned=known.is_planned and kind.is_planned,
            )
        return Entry(self.deletes, tuple(found.values()))


NOTHING: Final = Entry()
_DECODER: Final = msgspec.json.Decoder(dict[str, Entry])


class Register:
    """The record; threads may share it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        guard: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called after each change of the record."""
        self._record = Record(client, namespace, guard, _KEY, _DECODER)
        self._lock = threading.Lock()
        self._writing: Counter[tuple[str, str, str]] = Counter()
        """Number of threads that write objects, by policy and kind."""
        self._on_change = on_change

    def policies(self) -> list[str]:
        """Return the recorded policies. Raises: DependencyError."""
        with self._lock:
            return sorted(self._record.read())

    def of(self, policy: str) -> Entry:
        """Return the record of a policy. Raises: DependencyError."""
        with self._lock:
            return self._record.read().get(policy, NOTHING)

    def written(self) -> dict[str, list[GeneratedKind]]:
        """Return the kinds with written objects, by policy.

        Raises: DependencyError.
        """
        with self._lock:
            return {
                policy: [kind for kind in entry.kinds if not kind.is_planned]
                for policy, entry in self._record.read().items()
            }

    def set_deletes(self, policy: str, *, deletes: bool) -> None:
        """Record whether to delete the objects with their policy, if it is recorded.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            known = self._record.read().get(policy)
            if known is not None:
                self._record.replace(policy, Entry(deletes, known.kinds))

    def remove(self, policy: str) -> None:
        """Remove a policy's record. Raises: DependencyError, LeaseLost."""
        with self._lock:
            changed = self._record.replace(policy, None)
        if changed:
            self._on_change()

    def begin(
        self, policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        """Record kinds before their objects are written; return whether any is new.

        Raises: DependencyError, LeaseLost: then ``end`` must not be called.
        """
        kinds = [kind._replace(is_planned=True) for kind in kinds]
        if not kinds:
            return False
        with self._lock:
            is_new = self._add(policy, kinds, deletes=deletes)
            self._writing.update((policy, *one[:2]) for one in kinds)
        return is_new

    def end(
        self,
        policy: str,
        kinds: Iterable[GeneratedKind],
        *,
        written: Iterable[GeneratedKind],
        deletes: bool,
    ) -> bool:
        """Record kinds that may have been written; return whether any is new.

        The policy and its record may have been deleted meanwhile. ``kinds``: those
        passed to ``begin``. Raises: DependencyError, LeaseLost.
        """
        begun = [(policy, *kind[:2]) for kind in kinds]
        if not begun:
            return False
        with self._lock:
            self._writing.subtract(begun)
            # Adding an empty Counter removes zero counts.
            self._writing += Counter()
            is_new = self._add(policy, written, deletes=deletes)
        if is_new:
            self._on_change()
        return is_new

    def forget(self, policy: str, kinds: Iterable[GeneratedKind]) -> None:
        """Remove kinds without objects from the record, unless one was ever written.

        Raises: DependencyError, LeaseLost.
        """
        gone = {kind[:2] for kind in kinds}
        with self._lock:
            known = self._record.read().get(policy)
            if known is None:
                return
            kept = tuple(
                one
                for one in known.kinds
                if not (one.is_planned and one[:2] in gone)
                or self._writing[policy, *one[:2]]
            )
            self._record.replace(policy, Entry(known.deletes, kept) if kept else None)

    def _add(
        self, policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        known = self._record.read().get(policy)
        wanted = (known or Entry(deletes)).with_kinds(kinds)
        return bool(wanted.kinds) and self._record.replace(policy, wanted)
