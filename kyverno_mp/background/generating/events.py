"""Apply a change of a GeneratingPolicy: synchronise, generate, delete.

Room: background. Takes: names of policies. Gives: GeneratingEvents, a Reconciler.
Next: background/start.py. May touch: the API server through the parts of this room, the
log.
Source: docs/behaviour/cel 12d; docs/behaviour/controllers 5.8; Kyverno
pkg/policy/gpol.go.

A policy is synced when it changes, when this replica becomes the lease holder, and in
each scan interval; upstream does not sync namespaced policies.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate.lost import CLOCK_SKEW_NS, leave_out, newer_first
from kyverno_mp.background.generating.policies import (
    Generators,
    ReadyGenerating,
)
from kyverno_mp.background.objects.deletion import Owned, is_data
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import owner_of, policy_selector
from kyverno_mp.background.policies import policy_key
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.register import Entry, GeneratedKind, KindRegister
from kyverno_mp.background.update_request import (
    CEL_GENERATE,
    Place,
    StoredRequest,
    Task,
    Trigger,
)
from kyverno_mp.errors import InputError
from kyverno_mp.program.generate.requester import needs_review
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
Claims: TypeAlias = dict[str, set[Place]]
"""Key of a trigger -> the places of the objects whose labels name that trigger."""
_LIST_WAIT_S: Final = 5.0
"""Pause before a watch that may fail to list its kind is checked again."""
NAME: Final = "background-generating-policy"


class GeneratingEvents:
    """The reconciler of GeneratingPolicies; threads may share it."""

    def __init__(  # noqa: PLR0913 - wired in one place
        self,
        dependencies: BackgroundDependencies,
        policies: Generators,
        existing: Existing,
        downstream: Downstream,
        register: KindRegister,
        *,
        submit: Callable[[Task], bool],
        awaits_watches: Callable[[str], bool],
    ) -> None:
        """``submit`` queues a task for its trigger.

        ``awaits_watches`` returns whether a policy's generated kinds still have to be
        listed; the policy is then added again.
        """
        self._dependencies = dependencies
        self._policies = policies
        self._existing = existing
        self._downstream = downstream
        self._register = register
        self._submit = submit
        self._awaits_watches = awaits_watches
        self._lock = threading.Lock()
        self._synced: dict[str, tuple[tuple[object, ...], float]] = {}
        """The policy's version at its last sync, and the time of the next sync."""
        self._forgotten: set[str] = set()
        """Policies to sync again, even if a sync is in progress."""

    def reconcile(self, key: str) -> Result:
        """Bring a policy's objects to their desired state.

        Raises: DependencyError, LeaseLost.
        """
        stored = self._policies.get(key)
        if stored is None:
            return self._gone(key)
        try:
            ready = self._policies.ready(stored)
        except InputError as error:
            _log.warning(error.message, extra=fields(policy=key))
            return Result()
        self._record(ready)
        now_s = self._dependencies.clock.monotonic_s()
        with self._lock:
            self._forgotten.discard(key)
            version, next_s = self._synced.get(key, ((), 0.0))
        if version == ready.version and now_s < next_s:
            return Result(after_s=next_s - now_s)
        if ready.ir.synchronizes and self._awaits_watches(key):
            # A change between a comparison and the list of the watch would stay.
            return Result(after_s=_LIST_WAIT_S)
        refusals = Refusals()
        refused = sum(not self._submit(task) for task in self._tasks(ready, refusals))
        refusals.raise_first()
        if refused:
            return Result(retry=True)
        after_s = self._dependencies.settings.background_scan_interval_s
        with self._lock:
            if key not in self._forgotten:
                self._synced[key] = ready.version, now_s + after_s
        return Result(after_s=after_s)

    def forget_sync(self, policy: str) -> None:
        """Let the next reconcile sync a policy even if it did not change.

        The caller adds the policy to the queue afterwards. A sync in progress does not
        count: it may have processed the trigger before it changed.
        """
        with self._lock:
            self._synced.pop(policy, None)
            self._forgotten.add(policy)

    def lost(
        self, request: StoredRequest, since_ns: int, *, is_last: bool = True
    ) -> Iterator[Task]:
        """Yield the tasks when triggers of a policy were lost.

        Raises: DependencyError.
        """
        name = request.spec.policy
        refusals = Refusals()
        for policy in [name] if name else self._policies.names():
            try:
                ready = self._policies.newest(policy)
            except InputError as error:
                _log.warning(error.message, extra=fields(policy=policy))
                continue
            if ready is None:
                continue
            began_ns = since_ns - CLOCK_SKEW_NS
            yield from self.all_tasks(ready, refusals, began_ns, is_last=is_last)
        refusals.raise_first()

    def all_tasks(
        self,
        ready: ReadyGenerating,
        refusals: Refusals,
        since_ns: int = 0,
        *,
        is_last: bool = True,
    ) -> Iterator[Task]:
        """Yield a task for each current or former trigger of the policy.

        ``refusals`` collects the rejected lists. ``since_ns``: only triggers written
        since then, whose reviews are lost; only the last look reports those that are
        left out, and has triggers that were not written since. Raises: other
        DependencyErrors.
        """
        claims: Claims = {}
        triggers = self._of_downstream(ready, refusals, claims)
        existing = self._of_existing(ready, refusals, since_ns)
        if since_ns and needs_review(ready.ir):
            if is_last:
                name = ready.ir.policy.name
                leave_out(self._dependencies, ready.stored, name, existing)
            existing = {}
        if not is_last:
            triggers, existing = {}, newer_first(existing, triggers)
        yield from _tasks(ready, triggers, existing, claims)

    def _record(self, ready: ReadyGenerating) -> None:
        """Record whether objects are deleted with the policy; keep the kinds.

        This also applies while the policy does not synchronise, because it may do so
        again.
        """
        self._register.set_deletes(ready.name, deletes=ready.deletes_with_policy)

    def _gone(self, key: str) -> Result:
        """Delete a policy's generated objects if a live read shows that it is gone."""
        if self._policies.live(key) is not None:
            # The watch has not delivered the policy yet, and will.
            return Result()
        entry = self._register.of(key)
        refusals = Refusals()
        if entry.deletes:
            self._delete(key, entry, refusals)
        refusals.raise_first()
        self._register.remove(key)
        self._policies.forget(policy_key(key))
        with self._lock:
            self._synced.pop(key, None)
            self._forgotten.discard(key)
        return Result()

    def _delete(self, policy: str, entry: Entry, refusals: Refusals) -> None:
        owned = Owned(
            self._downstream,
            self._dependencies.metrics,
            policy_selector(policy),
            [kind[:2] for kind in entry.kinds],
            policy_key(policy)[0],
        )
        owned.delete(is_data, refusals)

    def _tasks(self, ready: ReadyGenerating, refusals: Refusals) -> Iterator[Task]:
        triggers: dict[str, Trigger] = {}
        existing: dict[str, Trigger] = {}
        claims: Claims = {}
        if ready.ir.synchronizes:
            triggers = self._of_downstream(ready, refusals, claims, forgets=True)
        if ready.ir.generates_existing:
            existing = self._of_existing(ready, refusals)
        yield from _tasks(ready, triggers, existing, claims)

    def _of_existing(
        self, ready: ReadyGenerating, refusals: Refusals, since_ns: int = 0
    ) -> dict[str, Trigger]:
        """Return the objects that the policy matches."""
        return self._existing.triggers_of_policy(
            ready.ir, ready.assumed_operation, refusals.add, since_ns
        )

    def _of_downstream(
        self,
        ready: ReadyGenerating,
        refusals: Refusals,
        claims: Claims,
        *,
        forgets: bool = False,
    ) -> dict[str, Trigger]:
        """Return the triggers of the objects that the policy generated.

        ``claims`` collects the objects that name a trigger, unless this pool wrote one
        of them.

        ``forgets``: remove kinds from the record that have no objects and never had
        any.
        """
        triggers: dict[str, Trigger] = {}
        written: set[str] = set()
        selector = policy_selector(ready.name)
        empty: list[GeneratedKind] = []
        for kind in self._register.of(ready.name).kinds:
            with refusals.kept():
                listed = list(
                    self._downstream.find(selector, [kind[:2]], ready.stored.key[0])
                )
                empty += [kind] * (not listed)
                for generated in listed:
                    owner = owner_of(generated.labels)
                    if owner is not None:
                        key = owner[1].key
                        triggers[key] = owner[1]
                        claims.setdefault(key, set()).add(generated.place)
                        if self._downstream.is_written(generated):
                            written.add(key)
        if forgets:
            self._register.forget(ready.name, empty)
        for key in written:
            del claims[key]
        return triggers


def _tasks(
    ready: ReadyGenerating,
    triggers: Mapping[str, Trigger],
    existing: Mapping[str, Trigger],
    claims: Claims,
) -> Iterator[Task]:
    """Yield a task for each trigger. ``existing``: triggers found without labels."""
    is_whole = ready.ir.synchronizes
    name = ready.ir.policy.name
    for key, trigger in {**triggers, **existing}.items():
        claimed = None if key in existing else claims.get(key)
        yield Task(
            *(CEL_GENERATE, ready.name, name, trigger),
            is_whole=is_whole,
            claims=None if claimed is None else frozenset(claimed),
        )
