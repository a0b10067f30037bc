"""Verify with live reads that a rule does not apply, as the caches suggest.

Room: background. Takes: a policy from the caches; a trigger's namespace. Gives: Caches,
PolicyChanged. Next: background/generate/generator.py, background/mutate/mutator.py.
May touch: the API server through the parts of this room.
Source: docs/background.md (requests); docs/architecture.md 3 (events are hints).

Admission may have seen a newer policy, PolicyException or label than the watches here.
A request that is dropped because of a stale one would be lost for good.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.policies import ReadyPolicy
from kyverno_mp.background.update_request import Task, Trigger
from kyverno_mp.errors import KubeConflict, KubeRefused
from kyverno_mp.ir.rules import RuleIR
from kyverno_mp.program.matching.match import reads_namespace_labels
from kyverno_mp.values.jsonvalue import Json


class PolicyChanged(KubeConflict):
    """The policy has changed since the watch; ``policy``: as stored, None = gone."""

    def __init__(self, policy: ReadyPolicy | None) -> None:
        super().__init__("background.policy_changed", "the policy changed")
        self.policy = policy


@dataclass(frozen=True, slots=True)
class Caches:
    """Compares the caches with the stored objects; threads may share it."""

    newest: Callable[[ReadyPolicy, Sequence[str]], ReadyPolicy | None]
    """Returns the stored version of the policy and of these PolicyExceptions."""
    triggers: Triggers

    def check_policy(
        self, task: Task, policy: ReadyPolicy, exceptions: Sequence[str]
    ) -> None:
        """Raise PolicyChanged if the policy or one of its exceptions has changed.

        ``exceptions``: those because of which the rule was skipped, by
        ``namespace/name``. A task of a policy event is not checked: the next event of
        the policy repeats it.

        Raises also: DependencyError.
        """
        if task.request is None:
            return
        newest = self.newest(policy, exceptions)
        if newest is None or newest.version != policy.version:
            raise PolicyChanged(newest)

    def newer_labels(
        self, task: Task, trigger: Json, rule: RuleIR, used: dict[str, str]
    ) -> dict[str, str] | None:
        """Return the live labels of the namespace, None if they equal ``used``.

        Raises: DependencyError.
        """
        namespace = str((trigger.get("metadata") or {}).get("namespace") or "")
        reads = reads_namespace_labels(rule.match, rule.exclude)
        if task.request is None or not (namespace and reads):
            return None
        try:
            live = self.triggers.find(Trigger("v1", "Namespace", name=namespace))
        except KubeRefused:
            return None
        labels = ((live or {}).get("metadata") or {}).get("labels") or {}
        return None if live is None or labels == used else dict(labels)
