"""Write all objects that a generate rule wants for one trigger.

Room: background. Takes: the Wanted objects of a rule. Gives: Writer. Next:
background/generate/generator.py. May touch: the API server through the register and
objects/downstream.py; the log.
Source: docs/behaviour/controllers 5.4, 5.6; docs/background.md.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.writes import Writes
from kyverno_mp.background.outcome import Outcome
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.register import RuleRegister
from kyverno_mp.background.results import Objects, Wanted, is_named
from kyverno_mp.background.update_request import Place, Task
from kyverno_mp.errors import (
    ExpressionFailed,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.kube.resource import Key
from kyverno_mp.program.generate.labels import CLONE_SOURCE
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)


Claim = Callable[[ReadyPolicy, GenerateRule, Iterable[Place]], None]


class SourceChanged(KubeConflict):
    """The source of a clone changed after it was read."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes generated objects; threads may share it."""

    dependencies: BackgroundDependencies
    downstream: Downstream
    register: RuleRegister
    on_recorded: Callable[[Key], None]
    """Called with a policy of which a rule was recorded."""
    claim: Claim
    """Called before objects of a rule are written."""

    def write_all(
        self,
        task: Task,
        policy: ReadyPolicy,
        rule: GenerateRule,
        applied: Wanted | None,
    ) -> Outcome:
        """Write all generated objects.

        Raises: KubeRefused or KubeNotFound after the last write if any was rejected;
        other errors at once.
        """
        objects = [] if applied is None else applied.objects
        named: Objects = []
        # Objects of an unrecorded rule would stay behind if the policy were deleted
        # while no replica holds the lease.
        is_new = bool(objects) and self._record(policy, rule)
        self.claim(policy, rule, self._places(objects))
        writes = Writes(task)
        try:
            for generated in objects:
                writes.add(partial(self._write, task, policy, rule, generated, named))
        finally:
            # The policy and its record may have been deleted during the writes.
            is_new = (bool(objects) and self._record(policy, rule)) or is_new
            if is_new:
                self.on_recorded(policy.stored.key)
        writes.check()
        results = self.dependencies.results
        if applied is not None and results is not None:
            results.generated(policy.ir, applied.result, applied.request, named)
        return writes.outcome()

    def _places(self, objects: Iterable[Generated]) -> Iterator[Place]:
        for generated in objects:
            with contextlib.suppress(ExpressionFailed):
                # The write of this object fails with the same error.
                yield self.downstream.place_of(generated)

    def _record(self, policy: ReadyPolicy, rule: GenerateRule) -> bool:
        """Record a rule whose objects are deleted with it; return whether it is new."""
        return rule.deletes_with_policy and self.register.add(
            policy.stored.name, rule.name, rule.downstream_kinds()
        )

    def _write(
        self,
        task: Task,
        policy: ReadyPolicy,
        rule: GenerateRule,
        generated: Generated,
        named: Objects,
    ) -> float:
        """Write an object; return the pause until the next.

        ``named`` collects the objects that the row of the result names.
        """
        if generated.source is not None and rule.synchronizes:
            self._label(generated.source)
        done = self.downstream.write(
            generated,
            synchronizes=rule.synchronizes,
            server_side=policy.server_side_apply,
            reads_first=task.request is None,
        )
        recorder = PolicyRecorder(
            policy.stored, self.dependencies.events, self.dependencies.metrics
        )
        if is_named(done, task):
            named.append(generated)
        return recorder.wrote(rule.name, generated, done)

    def _label(self, source: Json) -> None:
        """Label a source, so that admission notices all changes after the version read.

        Raises: SourceChanged when it was changed or deleted before it had the label;
        other DependencyErrors. KYVERNO: a rejection is only logged.
        """
        try:
            self.downstream.label_source(source, CLONE_SOURCE)
        except (KubeConflict, KubeNotFound) as error:
            raise SourceChanged("background.source", error.message) from error
        except KubeRefused as error:
            hides = hides_values(str(source.get("kind") or ""))
            _log.warning(
                "source of a clone: %s",
                withheld(error.code) if hides else error.message,
            )
