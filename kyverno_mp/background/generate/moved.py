"""Release or delete the objects of rules that now generate other objects.

Room: background. Takes: the versions of a policy. Gives: Moved; the Tasks that generate
the other objects. Next: background/generate/policy_events.py. May touch: the API server
through objects/downstream.py.
Source: docs/behaviour/controllers 5.5 (rule changes); docs/background.md.

The old objects are listed only once, when the change is noticed. After a rejection,
only the rest of them is processed again: a second list would also contain objects that
the changed rule has generated in the meantime.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kyverno_mp.background.objects.downstream import Downstream, Found
from kyverno_mp.background.objects.labels import rule_selector, trigger_of
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.update_request import GENERATE, Task
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.program.generate.labels import SOURCE_UID, Origin
from kyverno_mp.telemetry.families import BACKGROUND_WRITES


class _Known(NamedTuple):
    """A rule at the last sync, and the uid of its policy."""

    uid: str
    rule: GenerateRule


@dataclass(slots=True)
class _Old:
    """The objects that a rule generated before it changed."""

    origin: Origin
    targets: frozenset[bytes]
    unlisted: list[list[tuple[str, str]] | None]
    """The kinds that have to be listed; None = all kinds."""
    deleted_before: str
    """Objects created before this time are deleted; "" = none."""
    left: dict[str, Found] = field(default_factory=dict)
    """The objects by uid that still have the labels of the rule."""


class Moved:
    """Rules with changed targets; one policy is processed by one thread at a time."""

    def __init__(
        self,
        downstream: Downstream,
        metrics: Metrics,
        submit: Callable[[Task], bool],
    ) -> None:
        """``submit`` queues a task for its trigger."""
        self._downstream = downstream
        self._metrics = metrics
        self._submit = submit
        self._rules: dict[str, dict[str, _Known]] = {}
        self._old: dict[str, list[_Old]] = {}
        self._tasks: dict[str, dict[tuple[str, str], Task]] = {}
        """Tasks that the queue has not accepted yet, by rule and trigger."""

    def forget(self, policy: str) -> None:
        """Drop a deleted policy."""
        for kept in (self._rules, self._old, self._tasks):
            kept.pop(policy, None)

    def compare(self, ready: ReadyPolicy) -> list[Origin]:
        """Compare a policy with its last version; return the rules with new targets.

        KYVERNO: the old objects stay (pkg/policy/generate.go, ruleChange), unless the
        policy was deleted and created again: then they are deleted with it.
        """
        stored, rules = ready.stored, ready.generates
        policy, before = stored.name, self._rules.get(stored.name, {})
        self._rules[policy] = {
            name: _Known(stored.uid, rule) for name, rule in rules.items()
        }
        # A rule that generates the same objects again keeps them.
        old = [
            one
            for one in self._old.pop(policy, ())
            if not _covers(rules.get(one.origin.rule), one.targets)
        ]
        moved: list[Origin] = []
        for name, (uid, rule) in before.items():
            if name not in rules or _covers(rules[name], rule.targets):
                continue
            is_deleted = uid != stored.uid and rule.deletes_with_policy
            kinds = rule.downstream_kinds()
            moved.append(Origin(policy, name))
            old.append(
                _Old(
                    moved[-1],
                    rule.targets,
                    [None] if kinds is None else [[one] for one in kinds],
                    stored.created if is_deleted else "",
                )
            )
        if old:
            self._old[policy] = old
        return moved

    def settle(self, ready: ReadyPolicy, refusals: Refusals) -> None:
        """Release or delete old objects. Raises: DependencyErrors except rejections."""
        policy = ready.stored.name
        for old in self._old.get(policy, ()):
            self._list(old, ready.generates.get(old.origin.rule), refusals)
            for found in list(old.left.values()):
                with refusals.kept():
                    self._remove(old, found)
                    del old.left[found.uid]
        left = [one for one in self._old.pop(policy, ()) if one.unlisted or one.left]
        if left:
            self._old[policy] = left

    def submit(self, policy: str) -> bool:
        """Submit the tasks of moved rules; return whether some were not accepted."""
        tasks = self._tasks.pop(policy, {})
        left = {one: task for one, task in tasks.items() if not self._submit(task)}
        if left:
            self._tasks[policy] = left
        return bool(left)

    def _list(self, old: _Old, rule: GenerateRule | None, refusals: Refusals) -> None:
        """List the objects of the kinds that were not listed yet."""
        follows = (
            rule is not None
            and rule.copies_data
            and (rule.synchronizes or bool(old.deleted_before))
        )
        for kinds in list(old.unlisted):
            with refusals.kept():
                for found in self._downstream.find(rule_selector(old.origin), kinds):
                    old.left[found.uid] = found
                    if follows:
                        self._keep_task(old.origin, found)
                old.unlisted.remove(kinds)

    def _keep_task(self, origin: Origin, found: Found) -> None:
        """Keep the task that generates the new object: only labels name the trigger."""
        trigger = trigger_of(found.labels)
        if trigger is not None:
            task = Task(GENERATE, origin.policy, origin.rule, trigger)
            self._tasks.setdefault(origin.policy, {})[origin.rule, trigger.key] = task

    def _remove(self, old: _Old, found: Found) -> None:
        """Delete an object, or remove the rule's labels from it."""
        selector = rule_selector(old.origin)
        # SAFETY: objects of the new policy are not older than the policy.
        is_older = bool(found.created) and found.created < old.deleted_before
        if not is_older or found.labels.get(SOURCE_UID):
            self._downstream.release(found, selector)
        elif self._downstream.delete(found, selector):
            self._metrics.count(BACKGROUND_WRITES, ("deleted",))


def _covers(rule: GenerateRule | None, targets: frozenset[bytes]) -> bool:
    """Return whether a rule still has these targets."""
    return rule is not None and targets <= rule.targets
