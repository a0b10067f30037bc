"""Run a GeneratingPolicy for one trigger, and update the objects that it generates.

Room: background. Takes: a Task, the policies. Gives: Generating. Next:
background/runner.py. May touch: the API server through the parts of this room.
Source: docs/behaviour/cel 10.2, 12d; docs/background.md (GeneratingPolicies); Kyverno
pkg/background/gpol/generate_controller.go.

As for generate rules, the result depends only on the current trigger, policy and
objects that its expressions read.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.generating.evaluate import Evaluated, Evaluation
from kyverno_mp.background.generating.policies import (
    Generators,
    ReadyGenerating,
)
from kyverno_mp.background.generating.sources import Missing, SourceNotFound, Sources
from kyverno_mp.background.objects.deletion import Deleter, Owned
from kyverno_mp.background.objects.downstream import (
    OTHERS,
    Done,
    Found,
)
from kyverno_mp.background.objects.labels import (
    Selector,
    policy_selector,
    policy_trigger_selector,
)
from kyverno_mp.background.objects.triggers import (
    Triggers,
    is_ending,
    stored_trigger,
    undeleted,
    version_of,
)
from kyverno_mp.background.objects.writes import Writes, write_then_delete
from kyverno_mp.background.outcome import (
    APPLIED,
    DONE,
    NO_TRIGGER,
    NOT_DELETED,
    NOT_STORED,
    Outcome,
)
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.register import Entry, GeneratedKind
from kyverno_mp.background.results import is_named
from kyverno_mp.background.update_request import Place, Task
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import BACKGROUND_LOCKS
from kyverno_mp.program.generate.labels import SOURCE_UID
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.values.jsonvalue import Json

_DELETE: Final = "DELETE"


class Writer(Deleter, Protocol):
    """Reads and writes generated objects: Downstream, or the notes of a preview."""

    def place_of(self, generated: Generated) -> Place:
        """Return kind, namespace and name of an object that may not exist yet."""

    def write(
        self,
        generated: Generated,
        *,
        synchronizes: bool,
        server_side: bool,
        owned: Selector | None = None,
        reads_first: bool = False,
    ) -> Done:
        """Create or update an object; return what was done."""


class Record(Protocol):
    """The record of generated kinds: KindRegister, or a copy of it."""

    def of(self, policy: str) -> Entry:
        """Return the record of a policy."""

    def begin(
        self, policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        """Record kinds before their objects are written; return whether any is new."""

    def end(
        self,
        policy: str,
        kinds: Iterable[GeneratedKind],
        *,
        written: Iterable[GeneratedKind],
        deletes: bool,
    ) -> bool:
        """Record kinds that may have been written; return whether any is new."""


@dataclass(frozen=True, slots=True)
class Generating:
    """Runs GeneratingPolicies; threads may share it."""

    dependencies: BackgroundDependencies
    policies: Generators
    triggers: Triggers
    downstream: Writer
    register: Record
    evaluation: Evaluation
    on_recorded: Callable[[Key], None]
    """Called with a policy whose objects were written before it was reconciled, because
    it may have been deleted or changed in the meantime."""
    _locks: tuple[threading.Lock, ...] = field(
        default_factory=lambda: tuple(threading.Lock() for _ in range(BACKGROUND_LOCKS))
    )

    def run(self, task: Task, policy: ReadyGenerating | None) -> Outcome:
        """Run one task.

        Raises: ExpressionFailed and other InputErrors of the policy, DependencyError,
        LeaseLost.
        """
        with self._locks[hash(task.trigger.key) % len(self._locks)]:
            return self._run(task, policy)

    def _run(self, task: Task, policy: ReadyGenerating | None) -> Outcome:
        if policy is None:
            # background/generating/events.py deletes the objects of a deleted policy.
            return DONE
        namespace = policy.ir.policy.namespace
        if namespace and task.trigger.namespace != namespace:
            # SAFETY: labels can be forged and name any object as a trigger.
            return DONE
        if task.synchronizes and not policy.ir.synchronizes:
            return DONE
        stored = stored_trigger(task)
        if stored is not None and not task.deletes:
            if task.operation == _DELETE and not policy.deletes_on_delete:
                return DONE
            return undeleted(task, self.triggers) or self._generate(
                task, policy, stored
            )
        live = self.triggers.find(task.trigger)
        if live is None or is_ending(live):
            if task.deletes or task.is_whole or task.synchronizes:
                return self._delete_all(task, policy, is_known=live is not None)
            return DONE if live is not None else NO_TRIGGER
        # Labels may identify the trigger only in part, but new labels need all fields.
        metadata = live["metadata"]
        trigger = replace(
            task.trigger,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata.get("name") or ""),
            uid=str(metadata.get("uid") or ""),
        )
        return self._follow(replace(task, trigger=trigger), policy, live)

    def _follow(self, task: Task, policy: ReadyGenerating, live: Json) -> Outcome:
        """Run the task for a trigger that exists."""
        namespace = policy.ir.policy.namespace
        if namespace and task.trigger.namespace != namespace:
            # SAFETY: forged labels may give a cluster-scoped object a namespace.
            return DONE
        if task.deletes and task.operation == _DELETE:
            # A deletion is stored only after its review, and another webhook may reject
            # it.
            return NOT_DELETED
        if task.seen_version and version_of(live) == task.seen_version:
            return NOT_STORED
        if not policy.ir.synchronizes:
            return self._generate(task, policy, live)
        return self._align(task, policy, live)

    def _generate(self, task: Task, policy: ReadyGenerating, trigger: Json) -> Outcome:
        """Create missing objects."""
        evaluated = self.evaluation.evaluate(task, policy, trigger)
        if evaluated is None:
            return DONE
        return self._write_all(task, evaluated)

    def _align(self, task: Task, policy: ReadyGenerating, trigger: Json) -> Outcome:
        """Write the wanted objects, and delete the trigger's other objects.

        If the policy fails because a source was deleted, the clones of this source are
        deleted. After any other failure, the wanted objects are unknown and no object
        is deleted.
        """
        try:
            evaluated = self.evaluation.evaluate(task, policy, trigger)
        except SourceNotFound as error:
            if not task.deletes_clones or not self._lose(task, policy, error.sources):
                raise
            return DONE
        if not self._is_known(task, evaluated, trigger):
            return DONE
        return self._replace(task, policy, evaluated)

    def _lose(self, task: Task, policy: ReadyGenerating, sources: Sources) -> bool:
        """Delete the clones of sources that were not found.

        Return whether the missing sources account for all clones of deleted sources. If
        not, a source may have been created again with a new uid.

        Raises: the errors of ``_delete``.
        """
        unexplained = 0

        def is_stale(clone: Found) -> bool:
            nonlocal unexplained
            uid = clone.labels.get(SOURCE_UID, "")
            if not uid or sources.has(uid):
                return False
            source = Missing(clone.resource.group, clone.resource.plural, clone.key[1])
            if source in sources.missing:
                return uid in task.gone_sources or task.is_whole
            unexplained += uid in task.gone_sources
            return False

        self._delete(task, policy, is_stale)
        return bool(task.gone_sources) and not unexplained

    def _is_known(self, task: Task, evaluated: Evaluated | None, trigger: Json) -> bool:
        """Return whether a trigger named by labels is genuine.

        SAFETY: a user who can set labels must not make a policy generate for an object
        that never triggered it. A policy that generates nothing needs no check.
        """
        if task.claims is None or evaluated is None:
            return True
        if evaluated.policy.is_older_than(trigger):
            return True
        places = map(self.downstream.place_of, evaluated.wanted.objects)
        return not task.claims.isdisjoint(places)

    def _replace(
        self, task: Task, policy: ReadyGenerating, evaluated: Evaluated | None
    ) -> Outcome:
        """Write the generated objects, and delete the trigger's other objects.

        Raises: KubeRefused after both steps if any part was rejected; other errors at
        once.
        """
        if evaluated is None:
            self._delete(task, policy, lambda _object: True)
            return DONE
        places = {
            self.downstream.place_of(generated)
            for generated in evaluated.wanted.objects
        }
        return write_then_delete(
            lambda: self._write_all(task, evaluated),
            lambda: self._delete(
                task, evaluated.policy, lambda owned: owned.place not in places
            ),
        )

    def _delete_all(
        self, task: Task, policy: ReadyGenerating, *, is_known: bool
    ) -> Outcome:
        """Delete the objects that were generated for a deleted trigger."""
        if not policy.ir.synchronizes:
            return DONE
        if policy.deletes_on_delete and not task.deletes:
            # The deletion itself may have generated the object.
            return DONE
        if not is_known and not self.triggers.serves(task.trigger):
            # If the kind is not served, the trigger may still exist.
            return DONE
        self._delete(task, policy, lambda _object: True)
        return APPLIED

    def _write_all(self, task: Task, evaluated: Evaluated) -> Outcome:
        """Write all generated objects.

        Raises: KubeRefused after the last write if any was rejected; other errors at
        once.
        """
        policy, applied = evaluated.policy, evaluated.wanted
        named: list[Generated] = []
        objects = applied.objects if policy.ir.synchronizes else ()
        kinds = {_kind_of(generated) for generated in objects}
        deletes = policy.deletes_with_policy
        # Objects of an unrecorded kind would stay behind if the policy were deleted
        # while no replica holds the lease.
        is_new = self.register.begin(policy.name, kinds, deletes=deletes)
        written: list[GeneratedKind] = []
        writes = Writes(task)
        try:
            for generated in applied.objects:
                # A write whose response is lost may have succeeded.
                written.append(_kind_of(generated))
                if not writes.add(partial(self._write, task, policy, generated, named)):
                    written.pop()
        finally:
            # The policy and its record may have been deleted during the writes.
            ended = self.register.end(
                policy.name, kinds, written=kinds & {*written}, deletes=deletes
            )
            if is_new or ended:
                self.on_recorded(policy.stored.key)
        writes.check()
        results = self.dependencies.results
        if results is not None:
            results.generated(policy.ir.policy, applied.result, applied.request, named)
        return writes.outcome()

    def _write(
        self,
        task: Task,
        policy: ReadyGenerating,
        generated: Generated,
        named: list[Generated],
    ) -> float | None:
        """Write an object; return the pause until the next write, None if not ours.

        ``named`` collects the objects that the row of the result names.
        """
        done = self.downstream.write(
            generated,
            synchronizes=policy.ir.synchronizes,
            server_side=policy.ir.applies_server_side,
            owned=policy_selector(policy.name),
            reads_first=task.request is None,
        )
        recorder = PolicyRecorder(
            policy.stored, self.dependencies.events, self.dependencies.metrics
        )
        if is_named(done, task):
            named.append(generated)
        pause_s = recorder.wrote(policy.ir.policy.name, generated, done)
        return None if done.action == OTHERS else pause_s

    def _delete(
        self, task: Task, policy: ReadyGenerating, is_stale: Callable[[Found], bool]
    ) -> None:
        """Delete a trigger's objects that the policy no longer generates.

        Raises: KubeRefused after the last object, when a kind cannot be listed or an
        object cannot be deleted; other DependencyErrors at once.
        """
        selector = policy_trigger_selector(policy.name, task.trigger)
        entry = self.register.of(policy.name)
        kinds = [(kind.api_version, kind.kind) for kind in entry.kinds]
        namespace, metrics = policy.stored.key[0], self.dependencies.metrics
        refusals = Refusals()
        owned = Owned(self.downstream, metrics, selector, kinds, namespace)
        owned.delete(is_stale, refusals)
        refusals.raise_first()


def _kind_of(generated: Generated) -> GeneratedKind:
    is_cloned = SOURCE_UID in generated.resource["metadata"]["labels"]
    return GeneratedKind(generated.target.api_version, generated.target.kind, is_cloned)
