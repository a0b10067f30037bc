"""Watch the objects that GeneratingPolicies generated, and the sources of clones.

Room: background. Takes: the recorded kinds. Gives: Watches, which submits a Task for
each trigger whose objects another writer changed or deleted. Next: background/start.py.
May touch: the API server through kube/cache.py; informers' threads.
Source: docs/behaviour/controllers 5.8; Kyverno pkg/background/gpol/dynamic_watcher.go.

The kinds that a policy generates are known only after it has run, so no webhook can be
registered for them. As upstream, each kind is watched instead, by metadata only. After
a change, the policy is evaluated again instead of restoring a copy.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.background.generating.quota import Place, chosen
from kyverno_mp.background.objects.downstream import Downstream, Found
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.labels import GENERATED_BY_POLICIES, owner_of
from kyverno_mp.background.register import GeneratedKind
from kyverno_mp.background.update_request import CEL_GENERATE, Task
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import GENERATED_KINDS_MAX, GENERATED_KINDS_OF_NAMESPACE_MAX
from kyverno_mp.pool.term import FAILING
from kyverno_mp.program.generate.labels import SOURCE_UID

_TOO_MANY: Final = (
    f"more than {GENERATED_KINDS_MAX} kinds are generated, or more than"
    f" {GENERATED_KINDS_OF_NAMESPACE_MAX} by the policies of a namespace"
)


class _Known(NamedTuple):
    """A watched object. ``labels``: None if it was not generated."""

    uid: str
    version: str
    labels: dict[str, str] | None
    is_ending: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Metadata


_HEAD: Final = msgspec.json.Decoder(_Head)


def _known(raw: msgspec.Raw) -> _Known:
    metadata = _HEAD.decode(raw).metadata
    labels = metadata.labels or {}
    is_generated = owner_of(labels) is not None
    return _Known(
        metadata.uid,
        metadata.resource_version,
        labels if is_generated else None,
        is_ending=bool(metadata.deletion_timestamp),
    )


class Watches:
    """The informers of all watched kinds; threads may share it."""

    def __init__(
        self,
        client: Client,
        kinds: Kinds,
        downstream: Downstream,
        submit: Callable[[Task], bool],
        on_dropped: Callable[[str], None],
        on_listed: Callable[[str], None],
    ) -> None:
        """``submit`` queues a task; ``on_dropped`` gets the policy of a lost task.

        ``on_listed`` is called with a policy that was ``awaited``, once all its kinds
        are listed; it must not block.
        """
        self._client = client
        self._kinds = kinds
        self._downstream = downstream
        self._submit = submit
        self._on_dropped = on_dropped
        self._on_listed = on_listed
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, str], _Watch] = {}
        self._places: dict[str, set[Place]] = {}
        """The resources that each policy generates."""
        self._left_out: frozenset[Place] = frozenset()
        """Resources above the limits, which are not watched."""
        self._awaited: set[str] = set()
        """Policies to sync when their kinds are listed."""
        self._follows = False
        self._is_stopped = False
        self._unserved: frozenset[tuple[str, str, str]] = frozenset()
        """The kinds of policies that were not served at the last ``follow``."""

    @property
    def is_complete(self) -> bool:
        """Whether the API server served all kinds at the last ``follow``."""
        return not self._unserved

    def follow(self, kinds_of: Mapping[str, Iterable[GeneratedKind]]) -> set[str]:
        """Watch only the kinds of these policies, as far as the limits allow.

        Kinds that are not served are left out; ``is_complete`` is then False. Return
        the policies with a kind that is served again: its objects may have changed.

        Raises: DependencyError.
        """
        unserved: set[tuple[str, str, str]] = set()
        resources: dict[Place, tuple[Resource, bool]] = {}
        places: dict[str, set[Place]] = {}
        for policy, kinds in sorted(kinds_of.items()):
            for kind in sorted(kinds):
                resource = self._kinds.of_kind(kind.api_version, kind.kind)
                if resource is None:
                    unserved.add((policy, kind.api_version, kind.kind))
                    continue
                key = (resource.group, resource.plural)
                is_cloned = kind.is_cloned or resources.get(key, (resource, False))[1]
                resources[key] = resource, is_cloned
                places.setdefault(policy, set()).add(key)
        watched = chosen(places)
        followed = {
            key: resource for key, resource in resources.items() if key in watched
        }
        with self._lock:
            if self._is_stopped:
                return set()
            self._places = places
            self._follows = True
            again = {
                unserved_kind[0] for unserved_kind in self._unserved - unserved
            } & places.keys()
            self._unserved = frozenset(unserved)
            self._left_out = frozenset(resources) - watched
            ended = [
                self._watches.pop(key)
                for key, watch in list(self._watches.items())
                if key not in followed or followed[key][1] > watch.is_cloned
            ]
            begun = [key for key in followed if key not in self._watches]
            for key in begun:
                self._watches[key] = _Watch(self, *followed[key])
            started = [self._watches[key] for key in begun]
        for watch in ended:
            watch.informer.stop()
        for watch in started:
            watch.informer.start()
        return again

    def stop(self) -> None:
        """Stop all informers."""
        with self._lock:
            self._is_stopped = True
            watches = list(self._watches.values())
            self._watches.clear()
        for watch in watches:
            watch.informer.stop()

    def awaits(self, policy: str) -> bool:
        """Return whether a kind of a policy still has to be listed for the first time.

        If so, ``on_listed`` is called later. Kinds that cannot be listed are ignored.
        """
        with self._lock:
            if self._is_listed(policy):
                return False
            self._awaited.add(policy)
            return True

    def listed(self) -> None:
        """Call ``on_listed`` for each awaited policy whose kinds are listed now."""
        with self._lock:
            for policy in [
                policy for policy in self._awaited if self._is_listed(policy)
            ]:
                self._awaited.discard(policy)
                self._on_listed(policy)

    def _is_listed(self, policy: str) -> bool:
        watches = (self._watches.get(key) for key in self._places.get(policy, ()))
        return self._follows and all(
            watch is None or watch.informer.synced or watch.informer.failures >= FAILING
            for watch in watches
        )

    @property
    def informers(self) -> list[Informer[_Known]]:
        """The running informers."""
        with self._lock:
            return [watch.informer for watch in self._watches.values()]

    def problems(self) -> list[str]:
        """Return the current problems."""
        problems = [
            f"watch of generated {informer.scope.resource.plural}:"
            f" {informer.last_error}"
            for informer in self.informers
            if informer.failures >= FAILING
        ]
        if self._left_out:
            problems.append(
                f"{len(self._left_out)} generated kinds above the limit of"
                f" {GENERATED_KINDS_MAX}, or {GENERATED_KINDS_OF_NAMESPACE_MAX} for a"
                " namespace, are not watched"
            )
        return problems

    def unwatched(self) -> dict[str, dict[str, str]]:
        """Return each policy's unwatched kinds by plural name, with the reasons."""
        with self._lock:
            reasons = dict.fromkeys(self._left_out, _TOO_MANY)
            for key, watch in self._watches.items():
                if watch.informer.failures >= FAILING:
                    reasons[key] = watch.informer.last_error
            places = dict(self._places)
        reasons_of = {
            policy: {
                ".".join(filter(None, reversed(key))): reasons[key]
                for key in sorted(keys & reasons.keys())
            }
            for policy, keys in places.items()
        }
        return {policy: kinds for policy, kinds in reasons_of.items() if kinds}

    @property
    def client(self) -> Client:
        """The client of the informers."""
        return self._client

    def appeared(self, generated: Found) -> None:
        """Submit a task if another writer changed an object before it was seen here."""

        def decide() -> None:
            if self._downstream.is_changed(generated):
                self.add(generated)

        self._downstream.when_written(generated, decide)

    def changed(self, before: Found, now: Found) -> None:
        """Submit a task for a change, unless this pool made it."""

        def decide() -> None:
            if not self._downstream.is_own(now):
                self.add(before)

        self._downstream.when_written(now, decide)

    def gone(self, generated: Found) -> None:
        """Submit a task for a deletion, unless this pool made it."""
        if not self._downstream.is_deleted(generated.uid):
            self.add(generated)

    def add(self, generated: Found, *, gone_source: str = "") -> None:
        """Submit a task for the trigger that an object's labels name."""
        owner = owner_of(generated.labels)
        if owner is None:
            return
        policy, trigger = owner
        namespace = policy.rpartition("/")[0]
        if namespace and generated.key[0] != namespace:
            # The labels are wrong: that policy cannot generate in this namespace.
            return
        task = Task(
            *(CEL_GENERATE, policy, policy.rpartition("/")[2], trigger),
            synchronizes=True,
            gone_sources=frozenset((gone_source,) if gone_source else ()),
            claims=None
            if self._downstream.is_written(generated)
            else frozenset((generated.place,)),
        )
        if not self._submit(task):
            self._on_dropped(policy)


class _Watch:
    """The watched objects of one kind, as last seen."""

    def __init__(self, watches: Watches, resource: Resource, is_cloned: bool) -> None:  # noqa: FBT001 - of one caller
        """``is_cloned``: some objects are clones, whose sources have the same kind."""
        self._watches = watches
        self._resource = resource
        self.is_cloned = is_cloned
        selector = "" if is_cloned else GENERATED_BY_POLICIES
        scope = WatchScope(
            resource=resource, label_selector=selector, metadata_only=True
        )
        self.informer: Informer[_Known] = Informer(watches.client, scope, _known)
        self.informer.on_change(self._changed)
        self.informer.on_list(partial(self._listed, is_whole=False))
        self.informer.on_notified(partial(self._listed, is_whole=True))
        self._seen: dict[Key, _Known] = {}
        self._uids: set[str] = set()
        self._clones: dict[str, set[Key]] = {}
        """Source uid -> the keys of its clones."""
        self._is_whole = False
        """Whether ``_seen`` contains all objects of the last list."""

    def _changed(self, key: Key) -> None:
        """Handle a change by another writer; called in the informer's thread."""
        before, now = self._seen.get(key), self.informer.get(key)
        self._remember(key, before, now)
        if before == now:
            return
        if now is not None and self._is_whole:
            self._lacks_source(key, now, before)
        if before is None:
            if now is not None and now.labels:
                self._watches.appeared(self._found(key, now))
            return
        is_same = now is not None and now.uid == before.uid
        if before.labels is not None:
            generated = self._found(key, before)
            if now is None or not is_same or now.is_ending:
                self._watches.gone(generated)
            else:
                self._watches.changed(generated, self._found(key, now))
        self._source_changed(before.uid, is_gone=not is_same)

    def _listed(self, *, is_whole: bool) -> None:
        """Look for the sources of all clones after each list.

        Sources may have been deleted while no watch was running.
        """
        was_whole, self._is_whole = self._is_whole, is_whole
        if was_whole or not is_whole:
            return
        self._watches.listed()
        for uid in [clone for clone in self._clones if clone not in self._uids]:
            if self.is_cloned:
                self._source_changed(uid, is_gone=True)

    def _lacks_source(self, key: Key, now: _Known, before: _Known | None) -> None:
        """Submit a task if a clone's source was deleted before the clone was seen.

        KYVERNO: a clone has the same kind as its source. The uid is only a hint,
        because a source that was created again has a new uid.
        """
        source = _source_of(now)
        is_known = before is not None and _source_of(before) == source
        if self.is_cloned and source and source not in self._uids and not is_known:
            self._watches.add(self._found(key, now), gone_source=source)

    def _source_changed(self, uid: str, *, is_gone: bool) -> None:
        for key in list(self._clones.get(uid, ())):
            clone = self._seen.get(key)
            if clone is not None and clone.labels is not None:
                gone_source = uid if is_gone else ""
                self._watches.add(self._found(key, clone), gone_source=gone_source)

    def _remember(self, key: Key, before: _Known | None, now: _Known | None) -> None:
        if before is not None:
            source = _source_of(before)
            clones = self._clones.get(source, set())
            clones.discard(key)
            if not clones:
                self._clones.pop(source, None)
            self._uids.discard(before.uid)
        if now is None:
            self._seen.pop(key, None)
            return
        self._seen[key] = now
        self._uids.add(now.uid)
        source = _source_of(now)
        if source:
            self._clones.setdefault(source, set()).add(key)

    def _found(self, key: Key, now: _Known) -> Found:
        return Found(self._resource, key, now.uid, now.version, now.labels or {})


def _source_of(entry: _Known) -> str:
    """Return the uid of a clone's source; "" if the object is not a clone."""
    return (entry.labels or {}).get(SOURCE_UID, "")
