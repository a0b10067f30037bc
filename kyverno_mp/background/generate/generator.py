"""Run one generate rule for one trigger, and update the objects that it generates.

Room: background. Takes: a Task, a ReadyPolicy. Gives: Generator. Next:
background/requests.py. May touch: the API server through the parts of this room.
Source: docs/behaviour/controllers 5.4, 5.5, 5.6; docs/background.md (table).

The result depends only on the current trigger, rule and sources. A request only names
the trigger and the rule, so running it twice or late is harmless.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.background.caches import Caches, PolicyChanged
from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.generate.sources import Sources
from kyverno_mp.background.generate.writing import Claim, SourceChanged, Writer
from kyverno_mp.background.objects.deletion import Counts, Owned, delete_named
from kyverno_mp.background.objects.downstream import Downstream, Found
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
from kyverno_mp.background.objects.writes import write_then_delete
from kyverno_mp.background.outcome import (
    APPLIED,
    DONE,
    NO_TRIGGER,
    NOT_STORED,
    STILL_WANTED,
    Outcome,
)
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.register import RuleRegister
from kyverno_mp.background.results import Wanted
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import (
    ExpressionFailed,
)
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import BACKGROUND_LOCKS
from kyverno_mp.program import result
from kyverno_mp.program.generate.generation import evaluate_generations
from kyverno_mp.program.generate.labels import SOURCE_UID, Origin
from kyverno_mp.program.generate.rule import ElementsFailed
from kyverno_mp.program.generate.sources import NO_SOURCE
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 5
"""A source may change after it was read and before it is labelled; the task is then
repeated."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Runs generate rules; threads may share it."""

    dependencies: BackgroundDependencies
    triggers: Triggers
    downstream: Downstream
    register: RuleRegister
    caches: Caches
    on_recorded: Callable[[Key], None]
    """Called with a policy whose objects were written before it was reconciled, because
    it may have been deleted or changed in the meantime."""
    claim: Claim
    """Called before objects of a rule are written."""
    _locks: tuple[threading.Lock, ...] = field(
        default_factory=lambda: tuple(threading.Lock() for _ in range(BACKGROUND_LOCKS))
    )
    """Each lock guards some of the triggers, because a change of a source runs their
    tasks outside their queues."""

    def run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        """Run one task.

        Raises: ExpressionFailed and other InputErrors of the rule, DependencyError,
        LeaseLost.
        """
        with self._locks[hash(task.trigger.key) % len(self._locks)]:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._run(task, policy)
                except PolicyChanged as changed:
                    policy = changed.policy
                except SourceChanged:
                    pass
            return self._run(task, policy)

    def _run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        rule = policy.generates.get(task.rule) if policy is not None else None
        if policy is None or rule is None:
            delete_named(
                self.downstream, self.dependencies.metrics, task, _selector(task)
            )
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
                # A missing trigger for which objects were generated before was deleted;
                # it is not about to be created.
                is_gone = live is not None or task.synchronizes
                return DONE if is_gone else NO_TRIGGER
            self._delete_owned(task, rule, lambda _object: True)
            return APPLIED
        if task.seen_version and version_of(live) == task.seen_version:
            return NOT_STORED
        if task.deletes:
            return self._delete_stale(task, policy, rule, live)
        return self._generate(task, policy, rule, live)

    @property
    def _writer(self) -> Writer:
        return Writer(
            *(self.dependencies, self.downstream, self.register, self.on_recorded),
            self.claim,
        )

    def _generate(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, trigger: Json
    ) -> Outcome:
        evaluated = self.evaluate(task, policy, rule, trigger)
        if evaluated is None:
            return DONE
        done = self._writer.write_all(task, policy, rule, evaluated)
        evaluated.check()
        return done

    def evaluate(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, trigger: Json
    ) -> Wanted | None:
        """Return the objects that the rule generates, or None if it does not apply.

        The result also contains the error of the elements that failed.

        Raises: PolicyChanged when the policy has a newer version, which may apply;
        ExpressionFailed, DependencyError.
        """
        data = self.dependencies.cluster_data
        request = request_of(task, trigger, data, assumed_operation(rule.ir))
        evaluated, exceptions = self._evaluate(policy, rule, request)
        if evaluated is not None:
            return evaluated
        self.caches.check_policy(task, policy, exceptions)
        used = request.namespace_labels
        labels = self.caches.newer_labels(task, trigger, rule.ir, used)
        if labels is not None:
            request.namespace_labels = labels
            evaluated, _ = self._evaluate(policy, rule, request)
        return evaluated

    def _evaluate(
        self, policy: ReadyPolicy, rule: GenerateRule, request: Request
    ) -> tuple[Wanted | None, tuple[str, ...]]:
        """Return the generated objects, or None and the exceptions that apply."""
        engine, deadline_ns = self.dependencies.engine()
        context = engine.open(request, deadline_ns)
        rule_results = evaluate_generations(policy.ir, [rule.linked], context).results
        results = self.dependencies.results
        if (
            rule_results
            and rule_results[0].status != result.PASS
            and results is not None
        ):
            results.generated(policy.ir, rule_results[0], request)
        if not rule_results or rule_results[0].status in (result.SKIP, result.FAIL):
            return None, tuple(rule_results[0].exceptions) if rule_results else ()
        if rule_results[0].status == result.ERROR:
            raise ExpressionFailed("background.rule", rule_results[0].message)
        context = engine.open(request, deadline_ns)
        context.runtime.begin_policy(policy.ir, is_tenant=bool(policy.ir.namespace))
        scope = context.rule_scope(rule.name, policy_namespace=policy.ir.namespace)
        problem: ElementsFailed | None = None
        try:
            objects = rule.linked.generate(request, scope)
        except ElementsFailed as error:
            objects, problem = error.made, error
        return Wanted(objects, rule_results[0], request, problem), ()

    def _delete_stale(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json
    ) -> Outcome:
        """Delete the objects of a rule that no longer applies to an existing trigger.

        The change of the trigger may have been rejected by another webhook, or may not
        be stored yet. The rule then still applies, and the task is repeated.
        """
        applies, evaluated = self._applied(task, policy, rule, live)
        is_stale = self.lacks_source(policy, rule) if applies else lambda _object: True
        owned, deleted = self._delete_others(
            task, rule, self._places(evaluated), is_stale
        )
        return STILL_WANTED if owned and not deleted else APPLIED

    def _applied(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json
    ) -> tuple[bool, Wanted | None]:
        """Return whether the rule applies, and the objects that have their source.

        Raises: the other errors of ``evaluate``, also those of elements.
        """
        evaluated: Wanted | None = None
        try:
            evaluated = self.evaluate(task, policy, rule, live)
            if evaluated is not None:
                evaluated.check()
        except ExpressionFailed as error:
            if error.code != NO_SOURCE:
                raise
            return True, evaluated
        return evaluated is not None, evaluated

    def _source_gone(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json | None
    ) -> Outcome:
        """Delete the clones of a deleted source, unless a new source replaced it."""
        evaluated: Wanted | None = None
        if live is not None and not is_ending(live):
            _, evaluated = self._applied(task, policy, rule, live)
        return self._replace(
            task,
            policy,
            rule,
            evaluated,
            lambda owned: owned.labels.get(SOURCE_UID) in task.gone_sources,
        )

    def _align(
        self, task: Task, policy: ReadyPolicy, rule: GenerateRule, live: Json | None
    ) -> Outcome:
        """Write the generated objects; delete those that no event would have kept.

        As after an update of the trigger, objects of a rule that still applies stay,
        even if e.g. an element of a foreach list is gone (KYVERNO).
        """
        if live is None and not self.triggers.serves(task.trigger):
            return DONE
        evaluated: Wanted | None = None
        applies = False
        problem: ExpressionFailed | None = None
        if live is not None and not is_ending(live):
            try:
                evaluated = self.evaluate(task, policy, rule, live)
                applies = evaluated is not None
                problem = None if evaluated is None else evaluated.problem
            except ExpressionFailed as error:
                if error.code != NO_SOURCE:
                    raise
                applies, problem = True, error
        is_stale = self.lacks_source(policy, rule) if applies else lambda _object: True
        done = self._replace(task, policy, rule, evaluated, is_stale)
        if problem is not None:
            raise problem
        return done

    def lacks_source(
        self, policy: ReadyPolicy, rule: GenerateRule
    ) -> Callable[[Found], bool]:
        """Return the test for clones whose source is gone, for one trigger."""
        return Sources(self.triggers, policy, rule).lack

    def _replace(
        self,
        task: Task,
        policy: ReadyPolicy,
        rule: GenerateRule,
        evaluated: Wanted | None,
        is_stale: Callable[[Found], bool],
    ) -> Outcome:
        """Write the generated objects, and delete the stale ones of the other objects.

        Raises: KubeRefused after both steps if any part was rejected; other errors at
        once.
        """
        places = self._places(evaluated)
        return write_then_delete(
            lambda: self._writer.write_all(task, policy, rule, evaluated),
            lambda: self._delete_others(task, rule, places, is_stale),
        )

    def _delete_others(
        self,
        task: Task,
        rule: GenerateRule,
        places: set[tuple[str, str, str]],
        is_stale: Callable[[Found], bool],
    ) -> Counts:
        """Delete the stale objects in other places. Raises: as ``_delete_owned``."""
        return self._delete_owned(
            task, rule, lambda owned: place_of(owned) not in places and is_stale(owned)
        )

    def _places(self, evaluated: Wanted | None) -> set[tuple[str, str, str]]:
        objects = () if evaluated is None else evaluated.objects
        return {self.downstream.place_of(generated) for generated in objects}

    def _delete_owned(
        self, task: Task, rule: GenerateRule, is_stale: Callable[[Found], bool]
    ) -> Counts:
        """Delete a trigger's stale objects, unless the rule does not synchronize them.

        Raises: KubeRefused after the last object, when a kind cannot be listed or an
        object cannot be deleted; other DependencyErrors at once.
        """
        if not rule.synchronizes:
            return Counts(0, 0)
        refusals, metrics = Refusals(), self.dependencies.metrics
        kinds = rule.downstream_kinds()
        owned = Owned(self.downstream, metrics, _selector(task), kinds)
        counts = owned.delete(is_stale, refusals)
        refusals.raise_first()
        return counts


def place_of(owned: Found) -> tuple[str, str, str]:
    """Return the kind, namespace and name of an object."""
    return owned.place


def _selector(task: Task) -> dict[str, str]:
    return trigger_selector(Origin(task.policy, task.rule), task.trigger)
