"""Report the pool's work as Events, metrics and log lines with upstream's names.

Room: background. Takes: changes and failures. Gives: Events, counts. Next:
background/generate/generator.py, background/mutate/mutator.py, background/requests.py.
May touch: the log; the ports of BackgroundDependencies.
Source: docs/behaviour/controllers 9.1; Kyverno pkg/event/events.go.
"""

import logging
from dataclasses import dataclass
from typing import Final

from kyverno_mp.background.objects.downstream import CONTESTED, CREATED, UPDATED, Done
from kyverno_mp.background.policies import StoredPolicy
from kyverno_mp.background.update_request import Trigger
from kyverno_mp.kube.apply import key_of
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.policy_events import CEL_POLICY_VERSION, POLICY_VERSION
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.telemetry.families import BACKGROUND_CONTESTED, BACKGROUND_WRITES
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import ROW_OF

_log = logging.getLogger(__name__)
GENERATE: Final = "kyverno-generate"
MUTATE: Final = "kyverno-mutate"


@dataclass(frozen=True, slots=True)
class PolicyRecorder:
    """Reports the work for one policy; threads may share it."""

    policy: StoredPolicy
    events: EventSink
    metrics: Metrics

    def wrote(self, rule: str, generated: Generated, done: Done) -> float:
        """Report the result of a write; return the pause until the next write."""
        if done.action == CONTESTED:
            self.put_off()
        if done.action not in (CREATED, UPDATED):
            return done.pause_s
        self.generated(rule, generated, is_new=done.action == CREATED)
        if done.is_contest:
            self.contested(rule, generated, done.rival)
        return 0.0

    def generated(self, rule: str, generated: Generated, *, is_new: bool) -> None:
        """Report an object that was created or updated."""
        namespace, name = key_of(generated.resource)
        kind = str(generated.resource.get("kind") or "")
        reference = Reference(generated.target.api_version, kind, name, namespace)
        if is_new:
            note = (
                f"Created {kind} {name} as a result of applying policy"
                f" {self.policy.name}/{rule}"
            )
            self._submit(reference, None, "PolicyApplied", "None", note, GENERATE)
        self._submit(
            *(self._policy(), reference, "PolicyApplied", "Resource Generated"),
            *("resource generated", GENERATE),
        )
        self._count("created" if is_new else "updated")

    def mutated(self, rule: str, target: Json) -> None:
        """Report a target that was changed."""
        self._submit(
            *(self._policy(), _reference(target), "PolicyApplied", "Resource Mutated"),
            *("resource mutated", MUTATE),
            topic=rule,
        )
        self._count("mutated")

    def contested(self, rule: str, generated: Generated, rival: str) -> None:
        """Report that other writers change an object each time it is restored."""
        namespace, name = key_of(generated.resource)
        kind = str(generated.resource.get("kind") or "")
        identity = "/".join(filter(None, (kind, namespace, name)))
        by = f", most recently by {rival}" if rival else ""
        note = (
            f"{identity} is changed or deleted each time it is synchronised{by};"
            f" policy {self.policy.name}/{rule} now restores it less and less often"
        )
        _log.warning(note, extra=fields(policy=self.policy.name))
        reference = Reference(generated.target.api_version, kind, name, namespace)
        self._submit(self._policy(), reference, "PolicyError", "None", note, GENERATE)

    def unwatched(self, kinds: str) -> None:
        """Report that changes of generated objects are not noticed at once."""
        note = (
            f"changes to generated objects of policy {self.policy.name} are noticed"
            f" at the next scan only, because these kinds are not watched: {kinds}"
        )
        _log.warning(note, extra=fields(policy=self.policy.name))
        self._submit(self._policy(), None, "PolicyError", "None", note, GENERATE)

    def put_off(self) -> None:
        """Count that a contested object is not written for now."""
        self.metrics.count(BACKGROUND_CONTESTED, ())

    def failed(
        self, rule: str, trigger: Trigger, reason: str, *, mutates: bool
    ) -> None:
        """Report that a rule could not be applied to a trigger."""
        note = f"policy {self.policy.name}/{rule} error: {reason}"
        _log.warning(note, extra=fields(policy=self.policy.name))
        related = Reference(
            trigger.api_version, trigger.kind, trigger.name, trigger.namespace
        )
        controller = MUTATE if mutates else GENERATE
        self._submit(self._policy(), related, "PolicyError", "None", note, controller)

    def _count(self, action: str) -> None:
        self.metrics.count(BACKGROUND_WRITES, (action,))

    def _policy(self) -> Reference:
        namespace, name = self.policy.key
        kind = self.policy.kind
        api_version = CEL_POLICY_VERSION if ROW_OF[kind].is_in_cel else POLICY_VERSION
        return Reference(api_version, kind, name, namespace, self.policy.uid)

    def _submit(  # noqa: PLR0913, PLR0917 - the parts of an Event
        self,
        regarding: Reference,
        related: Reference | None,
        reason: str,
        action: str,
        note: str,
        controller: str,
        topic: str = "",
    ) -> None:
        self.events.submit(
            EventInfo(
                regarding=regarding,
                related=related,
                reason=reason,
                action=action,
                note=note,
                controller=controller,
                topic=topic,
            )
        )


def _reference(raw: Json) -> Reference:
    namespace, name = key_of(raw)
    return Reference(
        str(raw.get("apiVersion") or ""), str(raw.get("kind") or ""), name, namespace
    )
