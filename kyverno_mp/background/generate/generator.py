"""Run one generate rule for one trigger, and bring what it generates up to date.

Room: background. Takes: a Task, a ReadyPolicy. Gives: Generator. Next:
background/requests.py. May touch: the API server through the parts of this room.
Source: docs/behaviour/controllers 5.4, 5.5, 5.6; docs/background.md (table).

What happens follows from what there is now: the trigger, the rule, the sources. The
request says only where to look, so doing it twice, or late, does the same.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.background.caches import Caches, PolicyChanged
from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.generate.register import Register
from kyverno_mp.background.objects.downstream import (
    Downstream,
    Found,
)
from kyverno_mp.background.objects.labels import trigger_selector
from kyverno_mp.background.objects.triggers import (
    Triggers,
    assumed_operation,
    is_ending,
    request_of,
    stored_trigger,
    undeleted,
    version_of,
)
from kyverno_mp.background.outcome import (
    APPLIED,
    DONE,
    NO_TRIGGER,
    NOT_STORED,
    STILL_WANTED,
    Outcome,
    contested,
)
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.results import Objects, Wanted
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    KubeConflict,
    KubeNotFound,
)
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import BACKGROUND_LOCKS, BACKGROUND_RULE_S_MAX
from kyverno_mp.program import result
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.generate.generation import evaluate_generations
from kyverno_mp.program.generate.labels import CLONE_SOURCE, SOURCE_UID, Origin
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.generate.sources import NO_SOURCE
from kyverno_mp.program.request import Request
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 5
"""A source may change between its reading and its label; then the task is repeated."""


class _SourceChanged(KubeConflict):
    """The source of a clone is not what was read any more."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Runs generate rules; threads may share it."""

    dependencies: BackgroundDependencies
    triggers: Triggers
    downstream: Downstream
    register: Register
    caches: Caches
    on_recorded: Callable[[Key], None]
    """Called with a policy whose objects were written before it was reconciled: it may
    be deleted or changed by now."""
    _locks: tuple[threading.Lock, ...] = field(
        default_factory=lambda: tuple(threading.Lock() for _ in range(BACKGROUND_LOCKS))
    )
    """Each of some triggers: a change of a source leads to them without their queue."""

    def run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        """Do one task.

        Raises: ExpressionFailed and other InputErrors of the rule, DependencyError,
        LeaseLost.
        """
        with self._locks[hash(task.trigger.key) % len(self._locks)]:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._run(task, policy)
                except PolicyChanged as changed:
                    policy = changed.policy
                except _SourceChanged:
                    pass
            return self._run(task, policy)

    def _run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        rule = policy.generates.get(task.rule) if policy is not None else None
        if policy is None or rule is None:
            self._delete_named(task)
            return DONE
        if task.synchronizes and not rule.synchronizes:
            return DONE
        stored = stored_trigger(task)
        if stored is not None and not task.deletes:
            if task.operation == "DELETE" and not rule.deletes_on_delete:
                return DONE
            return undeleted(task, self.triggers) or self._generate(
                task, policy, rule, stored
            )
        live = self.triggers.find(task.trigger)
        if task.gone_sources:
            return self._source_gone(task, policy, rule, live)
        if task.is_whole:
            return self._align(task, policy, rule, live)
        if live is None or is_ending(live):
            if not task.deletes:
                # A trigger that generated before is not about to be stored.
                is_gone = live is not None or task.synchronizes
                return DONE if is_gone else NO_TRIGGER
            self._delete_owned(task, rule, lambda _one: True)
            return APPLIED
        if task.seen_version and version_of(live) == task.seen_version:
            return NOT_STORED
        if task.deletes:
            return self._delete_stale(task, policy, rule, live)
        return self._generate(task, policy, rule, live)

    def _generate(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, trigger: Json
    ) -> Outcome:
        wanted = self.evaluate(task, policy, rule, trigger)
        if wanted is None:
            return DONE
        return self._write_all(policy, rule, wanted)

    def evaluate(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, trigger: Json
    ) -> Wanted | None:
        """Return what the rule generates, None when it does not apply.

        Raises: PolicyChanged when only an older version of the policy does not apply;
        ExpressionFailed, DependencyError.
        """
        data = self.dependencies.cluster_data
        request = request_of(task, trigger, data, assumed_operation(rule.ir))
        wanted, exceptions = self._evaluate(policy, rule, request)
        if wanted is not None:
            return wanted
        self.caches.check_policy(task, policy, exceptions)
        used = request.namespace_labels
        labels = self.caches.newer_labels(task, trigger, rule.ir, used)
        if labels is not None:
            request.namespace_labels = labels
            wanted, _ = self._evaluate(policy, rule, request)
        return wanted

    def _evaluate(
        self, policy: ReadyPolicy, rule: GenerateRule, request: Request
    ) -> tuple[Wanted | None, tuple[str, ...]]:
        """Return what the rule generates, or None and the exceptions that say so."""
        clock = self.dependencies.clock
        engine = Engine(
            self.dependencies.cluster_data, Clock(clock.now, clock.monotonic_ns)
        )
        deadline_ns = engine.now_ns() + BACKGROUND_RULE_S_MAX * 10**9
        context = engine.open(request, deadline_ns)
        found = evaluate_generations(policy.ir, [rule.linked], context).results
        told = self.dependencies.results
        if found and found[0].status != result.PASS and told is not None:
            told.generated(policy.ir, found[0], request)
        if not found or found[0].status in (result.SKIP, result.FAIL):
            return None, tuple(found[0].exceptions) if found else ()
        if found[0].status == result.ERROR:
            raise ExpressionFailed("background.rule", found[0].message)
        context = engine.open(request, deadline_ns)
        context.runtime.begin_policy(policy.ir, is_tenant=bool(policy.ir.namespace))
        scope = context.rule_scope(rule.name, policy_namespace=policy.ir.namespace)
        return Wanted(rule.linked.generate(request, scope), found[0], request), ()

    def _write_all(
        self, policy: ReadyPolicy, rule: GenerateRule, applied: Wanted | None
    ) -> Outcome:
        """Write all objects that are wanted.

        Raises: KubeRefused after the last one when one was refused; others at once.
        """
        wanted = [] if applied is None else applied.objects
        created: Objects = []
        # What is not recorded would stay when its policy is deleted unnoticed.
        is_new = bool(wanted) and self._record(policy, rule)
        pauses, refusals = [], Refusals()
        try:
            for one in wanted:
                with refusals.kept():
                    pauses.append(self._write(policy, rule, one, created))
        finally:
            # The policy, and its record with it, may have gone during the writes.
            is_new = (bool(wanted) and self._record(policy, rule)) or is_new
            if is_new:
                self.on_recorded(policy.stored.key)
        refusals.tell()
        results = self.dependencies.results
        if applied is not None and results is not None:
            results.generated(policy.ir, applied.result, applied.request, created)
        later = [pause_s for pause_s in pauses if pause_s]
        return contested(min(later)) if later else APPLIED

    def _record(self, policy: ReadyPolicy, rule: GenerateRule) -> bool:
        """Record a rule whose objects go with it; return whether it was not there."""
        return rule.deletes_with_policy and self.register.add(
            policy.stored.name, rule.name, rule.downstream_kinds()
        )

    def _write(
        self, policy: ReadyPolicy, rule: GenerateRule, one: Generated, new: Objects
    ) -> float:
        """Write an object; return how long to leave it. ``new`` gets a new one."""
        if one.source is not None and rule.synchronizes:
            self._label(one.source)
        done = self.downstream.write(
            one,
            synchronizes=rule.synchronizes,
            server_side=policy.server_side_apply,
        )
        recorder = PolicyRecorder(
            policy.stored, self.dependencies.events, self.dependencies.metrics
        )
        return recorder.wrote(rule.name, one, done, new)

    def _label(self, source: Json) -> None:
        """Let admission notice changes of a source from the version on that was read.

        Raises: _SourceChanged when it changed or was deleted before, unrecorded.
        """
        try:
            self.downstream.label_source(source, CLONE_SOURCE)
        except (KubeConflict, KubeNotFound) as error:
            raise _SourceChanged("background.source", error.message) from error
        except DependencyError as error:
            hides = hides_values(str(source.get("kind") or ""))
            _log.warning(
                "source of a clone: %s",
                withheld(error.code) if hides else error.message,
            )

    def _delete_stale(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json
    ) -> Outcome:
        """Delete what the rule no longer generates for a trigger that exists.

        The admission request that announced it may be refused by others, or may not be
        stored yet: then all is still wanted, and the task is repeated.
        """
        wanted = self._without_source(task, policy, rule, live)
        kept = self._places(wanted)
        owned, deleted = self._delete_owned(
            task, rule, lambda one: place_of(one) not in kept
        )
        if owned and not deleted:
            return STILL_WANTED
        return APPLIED

    def _without_source(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json
    ) -> Wanted | None:
        """Evaluate the rule; that it fails without its source is expected.

        Raises: as ``evaluate``; after another failure nothing is known of the source.
        """
        try:
            return self.evaluate(task, policy, rule, live)
        except ExpressionFailed as error:
            if error.code != NO_SOURCE:
                raise
            return None

    def _source_gone(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json | None
    ) -> Outcome:
        """Delete clones of a source that was deleted; another may be in its place."""
        wanted: Wanted | None = None
        if live is not None and not is_ending(live):
            wanted = self._without_source(task, policy, rule, live)
        return self._replace(
            task,
            policy,
            rule,
            wanted,
            lambda one: one.labels.get(SOURCE_UID) in task.gone_sources,
        )

    def _align(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json | None
    ) -> Outcome:
        """Write what is wanted, and delete what is not."""
        if live is None and not self.triggers.serves(task.trigger):
            return DONE
        wanted: Wanted | None = None
        if live is not None and not is_ending(live):
            wanted = self.evaluate(task, policy, rule, live)
        return self._replace(task, policy, rule, wanted, lambda _one: True)

    def _replace(
        self,
        task: Task,
        policy: ReadyPolicy,
        rule: GenerateRule,
        wanted: Wanted | None,
        is_stale: Callable[[Found], bool],
    ) -> Outcome:
        """Write what is wanted, and delete what is stale of the rest.

        Raises: KubeRefused after both, when a part was refused; others at once.
        """
        written, refusals = APPLIED, Refusals()
        with refusals.kept():
            written = self._write_all(policy, rule, wanted)
        kept = self._places(wanted)
        with refusals.kept():
            self._delete_owned(
                task, rule, lambda one: is_stale(one) and place_of(one) not in kept
            )
        refusals.tell()
        return written

    def _places(self, wanted: Wanted | None) -> set[tuple[str, str, str]]:
        objects = () if wanted is None else wanted.objects
        return {self.downstream.place_of(one) for one in objects}

    def _delete_owned(
        self, task: Task, rule: GenerateRule, is_stale: Callable[[Found], bool]
    ) -> tuple[int, int]:
        """Delete what is stale of a trigger's objects; return their number, and its.

        Raises: KubeRefused after the last object, when a kind cannot be listed or one
        not be deleted; other DependencyErrors at once.
        """
        owned = stale = 0
        if not rule.synchronizes:
            return owned, stale
        selector, refusals = _selector(task), Refusals()
        with refusals.kept():
            for one in self.downstream.find(selector, rule.downstream_kinds()):
                owned += 1
                if is_stale(one):
                    stale += 1
                    with refusals.kept():
                        self.downstream.delete(one, selector)
        refusals.tell()
        return owned, stale

    def _delete_named(self, task: Task) -> None:
        """Delete what a request of upstream names, as far as its labels are the rule's.

        Others see to the objects of a policy that is gone: policy_events.py.
        """
        if task.request is None or not task.deletes:
            return
        named = task.request.status.generated_resources or ()
        kinds = {(one.api_version, one.kind) for one in named}
        places = {(one.kind, one.namespace, one.name) for one in named}
        selector, refusals = _selector(task), Refusals()
        with refusals.kept():
            for one in self.downstream.find(selector, kinds):
                if place_of(one) in places:
                    with refusals.kept():
                        self.downstream.delete(one, selector)
        refusals.tell()


def place_of(found: Found) -> tuple[str, str, str]:
    """Return kind, namespace and name."""
    return found.resource.kind, *found.key


def _selector(task: Task) -> dict[str, str]:
    return trigger_selector(Origin(task.policy, task.rule), task.trigger)
