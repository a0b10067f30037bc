"""Apply a change of a policy: synchronise, generate, mutate, delete.

Room: background. Takes: names of policies. Gives: PolicyEvents, a Reconciler. Next:
background/start.py. May touch: the API server through the parts of this room, the log.
Source: docs/behaviour/controllers 5.2, 5.5, 5.7; docs/background.md.

A policy is synced when it changes, when this replica becomes the lease holder, and in
each scan interval. The objects of a removed rule are found by their labels: one list
for each kind and one call for each object.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate.moved import Moved
from kyverno_mp.background.objects.deletion import Owned, is_data
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import rule_selector, trigger_of
from kyverno_mp.background.policies import (
    GenerateRule,
    ReadyPolicy,
    policy_key,
)
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.register import RuleKinds, RuleRegister
from kyverno_mp.background.stored import RulePolicies
from kyverno_mp.background.update_request import (
    GENERATE,
    MUTATE,
    Place,
    Task,
    Trigger,
)
from kyverno_mp.errors import InputError
from kyverno_mp.program.generate.labels import Origin
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
NAME: Final = "background-policy"


class _Place(NamedTuple):
    """The location of a generated object."""

    group: str
    plural: str
    namespace: str
    name: str


class PolicyEvents:
    """The reconciler of policies; threads may share it."""

    def __init__(
        self,
        dependencies: BackgroundDependencies,
        policies: RulePolicies,
        existing: Existing,
        downstream: Downstream,
        register: RuleRegister,
        submit: Callable[[Task], bool],
    ) -> None:
        """``submit`` queues a task for its trigger."""
        self._dependencies = dependencies
        self._policies = policies
        self._existing = existing
        self._downstream = downstream
        self._submit = submit
        self._register = register
        self._lock = threading.Lock()
        self._synced: dict[str, tuple[tuple[str, int] | None, float]] = {}
        """The policy's version at its last sync, and the time of the next sync."""
        self._moved = Moved(downstream, submit, dependencies.clock.now)
        self._known: dict[Origin, dict[_Place, Trigger]] = {}
        """The objects of each rule that the last sync found."""

    def claim(
        self, policy: ReadyPolicy, rule: GenerateRule, places: Iterable[Place]
    ) -> None:
        """Record the objects that a rule is about to write."""
        self._moved.claim(policy, rule, places)

    def reconcile(self, key: str) -> Result:
        """Bring a policy's objects to their desired state.

        Raises: DependencyError, LeaseLost.
        """
        stored = self._policies.get(key)
        if stored is None:
            return self._gone(key)
        version = stored.uid, stored.metadata_generation
        now_s = self._dependencies.clock.monotonic_s()
        try:
            ready = self._policies.ready(stored)
        except InputError as error:
            _log.warning(error.message, extra=fields(policy=key))
            return Result()
        refusals = Refusals()
        # A generator with an older version of the policy may have recorded a rule of
        # that version.
        left_over = self._delete_removed(key, _recorded(ready), refusals)
        self._register.record(key, {**left_over, **_recorded(ready)})
        synced, next_s = self._synced.get(key, (None, 0.0))
        if synced == version and now_s < next_s:
            # Only the status or the metadata changed.
            refusals.raise_first()
            return Result(after_s=next_s - now_s)
        for origin in self._moved.compare(ready):
            with self._lock:
                self._known.pop(origin, None)
        self._moved.settle(ready, refusals)
        has_tasks_left = self._moved.submit(key)
        tasks = self._tasks(ready, refusals)
        refused = sum(not self._submit(task) for task in tasks)
        refusals.raise_first()
        if has_tasks_left or refused:
            return Result(retry=True)
        after_s = self._dependencies.settings.background_scan_interval_s
        self._synced[key] = version, now_s + after_s
        return Result(after_s=after_s)

    def _gone(self, key: str) -> Result:
        """Delete a policy's generated objects if a live read shows that it is gone."""
        if self._policies.live(key) is not None:
            # The watch has not delivered the policy yet, and will.
            return Result()
        refusals = Refusals()
        self._delete_removed(key, {}, refusals)
        refusals.raise_first()
        self._register.record(key, {})
        self._policies.forget(policy_key(key))
        self._moved.forget(key)
        self._synced.pop(key, None)
        with self._lock:
            for origin in [origin for origin in self._known if origin.policy == key]:
                del self._known[origin]
        return Result()

    def _delete_removed(
        self, policy: str, rule_kinds: RuleKinds, refusals: Refusals
    ) -> RuleKinds:
        """Delete the objects of recorded rules that the policy no longer has.

        Return the rules that may still have objects, because a deletion was rejected.

        A rule that still exists but is no longer recorded keeps its objects: it no
        longer synchronises them, or orphans them.
        """
        ready = None
        stored = self._policies.get(policy)
        if stored is not None:
            ready = self._policies.ready(stored)
        left_over: RuleKinds = {}
        for rule, kinds in self._register.of(policy).items():
            if rule in rule_kinds or (ready is not None and rule in ready.generates):
                continue
            refused_before = len(refusals)
            self._delete(Origin(policy, rule), kinds, refusals)
            if len(refusals) > refused_before:
                left_over[rule] = kinds
        return left_over

    def _delete(
        self,
        origin: Origin,
        kinds: list[tuple[str, str]] | None,
        refusals: Refusals,
    ) -> None:
        metrics = self._dependencies.metrics
        owned = Owned(self._downstream, metrics, rule_selector(origin), kinds)
        owned.delete(is_data, refusals)

    def _tasks(self, ready: ReadyPolicy, refusals: Refusals) -> Iterator[Task]:
        """Yield the tasks for the triggers of a policy.

        ``refusals`` collects the errors of kinds that cannot be listed, whose triggers
        are missing.
        """
        name = ready.stored.name
        for rule in ready.generates.values():
            triggers: dict[str, Trigger] = {}
            if rule.synchronizes:
                origin = Origin(name, rule.name)
                triggers |= self._of_downstream(origin, rule, refusals)
            if rule.existing:
                triggers |= self._existing.triggers(
                    ready.ir, rule, on_refused=refusals.add
                )
            for trigger in triggers.values():
                yield Task(GENERATE, name, rule.name, trigger)
        for mutate in ready.mutates.values():
            if mutate.on_policy_update:
                mutated_triggers = self._existing.triggers(
                    ready.ir, mutate, on_refused=refusals.add
                )
                for trigger in mutated_triggers.values():
                    yield Task(MUTATE, name, mutate.name, trigger)

    def _of_downstream(
        self, origin: Origin, rule: GenerateRule, refusals: Refusals
    ) -> dict[str, Trigger]:
        """Return the triggers of a rule's objects, both existing and deleted ones.

        An object of the last sync that is gone was deleted. If admission did not see
        the deletion, the object is created again now. Clones follow their sources, not
        the policy.
        """
        selector = rule_selector(origin)
        now: dict[_Place, Trigger] = {}
        refused_before = len(refusals)
        with refusals.kept():
            for generated in self._downstream.find(selector, rule.downstream_kinds()):
                trigger = trigger_of(generated.labels)
                if trigger is not None:
                    resource = generated.resource
                    now[_Place(resource.group, resource.plural, *generated.key)] = (
                        trigger
                    )
        with self._lock:
            before = self._known.get(origin) or {}
            # After a rejection, it is not known whether the objects that were not
            # listed are gone.
            self._known[origin] = (
                {**before, **now} if len(refusals) > refused_before else now
            )
        triggers = [
            trigger
            for place_before, trigger in before.items()
            if place_before not in now
        ]
        if rule.copies_data:
            triggers += now.values()
        return {trigger.key: trigger for trigger in triggers}


def _recorded(ready: ReadyPolicy) -> RuleKinds:
    """Return the rules whose objects are deleted with them."""
    return {
        rule.name: rule.downstream_kinds()
        for rule in ready.generates.values()
        if rule.deletes_with_policy
    }
