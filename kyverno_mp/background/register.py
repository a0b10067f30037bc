"""Record what the policies of the pool have generated, in a ConfigMap.

Room: background. Takes: the rules of a policy; the objects of a GeneratingPolicy before
they are written. Gives: RuleRegister, KindRegister. Next:
background/generate/policy_events.py, background/generating/run.py,
background/generating/watches.py. May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 5.5 (delete rule/policy); docs/behaviour/cel 12d
(generating); docs/background.md (what happens to a generated object).

Labels do not show whether an object is synchronised or may be orphaned, a policy that
was deleted while no replica held the lease can no longer be read, and the kinds that a
GeneratingPolicy generates are known only after its expressions have run. So a rule, or
a kind, is recorded before its first object is written, because the lease holder may be
killed between the two. A kind is watched after that write, and removed from the record
if no write succeeds.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from kyverno_mp.background.policies import tenant_of
from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import BACKGROUND_RECORD_BYTES_MAX
from kyverno_mp.values.jsonvalue import Json

NAME: Final = "kyverno-mp-background"
_RULES_KEY: Final = "rules.json"
_KINDS_KEY: Final = "generating-policies.json"
_CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap"
)
T = TypeVar("T")


class _Record(Generic[T]):
    """The records in one key, read once per term; guarded by the owner's lock."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        guard: Callable[[], None],
        key: str,
        decoder: msgspec.json.Decoder[dict[str, T]],
    ) -> None:
        self._objects = Objects(client, guard)
        self._place = (namespace, NAME)
        self._key = key
        self._decoder = decoder
        self._known: dict[str, T] | None = None

    def read(self) -> dict[str, T]:
        """Return the records by policy. Raises: DependencyError."""
        if self._known is None:
            config_map = self._objects.find(_CONFIG_MAPS, self._place)
            encoded = ((config_map or {}).get("data") or {}).get(self._key, "{}")
            try:
                self._known = self._decoder.decode(encoded)
            except msgspec.DecodeError:
                # A record that was damaged by hand must not cause deletions.
                self._known = {}
        return self._known

    def replace(self, policy: str, entry: T | None) -> bool:
        """Replace a policy's record; a no-op if the record does not change.

        Raises: KubeRefused if the records of the policy's tenant take too much space;
        DependencyError, LeaseLost.
        """
        records = self.read()
        if records.get(policy) == entry:
            return False
        changed = {name: record for name, record in records.items() if name != policy}
        if entry is not None:
            changed[policy] = entry
        encoded = _encoded(changed)
        if len(encoded) > BACKGROUND_RECORD_BYTES_MAX:
            _check_share(policy, records, changed)
        try:
            self._write(encoded)
        except BaseException:
            # It is unknown whether the write succeeded.
            self._known = None
            raise
        self._known = changed
        return True

    def _write(self, encoded: str) -> None:
        def edit(raw: Json) -> Json:
            return {**raw, "data": {**(raw.get("data") or {}), self._key: encoded}}

        if self._objects.change(_CONFIG_MAPS, self._place, edit) is None:
            namespace, name = self._place
            raw: Json = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {self._key: encoded},
            }
            self._objects.create(_CONFIG_MAPS, raw)


def _encoded(entries: object) -> str:
    return msgspec.json.encode(entries, order="sorted").decode()


def _check_share(
    policy: str, before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    """Raise KubeRefused if a tenant with more than the average records even more.

    SAFETY: a ConfigMap has at most 1 MiB. If one tenant could fill it, no other policy
    could be recorded, and their rules would generate nothing.
    """
    if len(_encoded(after.get(policy))) <= len(_encoded(before.get(policy))):
        return
    sizes: Counter[str] = Counter()
    for name, entry in after.items():
        sizes[tenant_of(name)] += len(name) + len(_encoded(entry))
    if sizes[tenant_of(policy)] * len(sizes) >= sizes.total():
        raise KubeRefused(
            "background.record_full",
            f"the ConfigMap {NAME} has no room for the rules of policy {policy}",
        )


RuleKinds = dict[str, list[tuple[str, str]] | None]
"""Name of a rule -> (apiVersion, kind) of its objects; None = any kind."""
_RULES: Final = msgspec.json.Decoder(dict[str, RuleKinds])


class RuleRegister:
    """The record; threads may share it."""

    def __init__(
        self, client: Client, namespace: str, guard: Callable[[], None]
    ) -> None:
        self._record = _Record(client, namespace, guard, _RULES_KEY, _RULES)
        self._lock = threading.Lock()

    def policies(self) -> list[str]:
        """Return the recorded policies. Raises: DependencyError."""
        with self._lock:
            return sorted(self._record.read())

    def of(self, policy: str) -> RuleKinds:
        """Return the record of a policy. Raises: DependencyError."""
        with self._lock:
            return dict(self._record.read().get(policy) or {})

    def record(self, policy: str, rules: RuleKinds) -> None:
        """Replace a policy's record; a no-op if the record does not change.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            self._record.replace(policy, rules or None)

    def add(self, policy: str, rule: str, kinds: list[tuple[str, str]] | None) -> bool:
        """Record a rule before its first object is written; return whether it is new.

        A request may be processed before the watch delivers its policy.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            rules = self._record.read().get(policy) or {}
            if rule in rules:
                return False
            self._record.replace(policy, {**rules, rule: kinds})
            return True


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
        by_kind = {kind[:2]: kind for kind in self.kinds}
        for kind in kinds:
            recorded = by_kind.get(kind[:2], kind)
            by_kind[kind[:2]] = kind._replace(
                is_cloned=recorded.is_cloned or kind.is_cloned,
                is_planned=recorded.is_planned and kind.is_planned,
            )
        return Entry(self.deletes, tuple(by_kind.values()))


NOTHING: Final = Entry()
_KINDS: Final = msgspec.json.Decoder(dict[str, Entry])


class KindRegister:
    """The record; threads may share it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        guard: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called after each change of the record."""
        self._record = _Record(client, namespace, guard, _KINDS_KEY, _KINDS)
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
            entry = self._record.read().get(policy)
            if entry is not None:
                self._record.replace(policy, Entry(deletes, entry.kinds))

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
            self._writing.update((policy, *kind[:2]) for kind in kinds)
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
        removed = {kind[:2] for kind in kinds}
        with self._lock:
            entry = self._record.read().get(policy)
            if entry is None:
                return
            remaining = tuple(
                kind
                for kind in entry.kinds
                if not (kind.is_planned and kind[:2] in removed)
                or self._writing[policy, *kind[:2]]
            )
            self._record.replace(
                policy, Entry(entry.deletes, remaining) if remaining else None
            )

    def _add(
        self, policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        entry = self._record.read().get(policy)
        extended = (entry or Entry(deletes)).with_kinds(kinds)
        return bool(extended.kinds) and self._record.replace(policy, extended)
