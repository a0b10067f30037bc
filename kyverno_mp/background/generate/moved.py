"""Release the objects of rules that now generate other objects.

Room: background. Takes: the versions of a policy. Gives: Moved; the Tasks that generate
the other objects. Next: background/generate/policy_events.py. May touch: the API server
through objects/downstream.py.
Source: docs/behaviour/controllers 5.5 (rule changes); docs/background.md.

The old objects are listed when the change is noticed. After a rejection, only the rest
of them is processed again: a later list also contains objects that the changed rule has
generated in the meantime, which keep their labels.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kyverno_mp.background.generate.lost import CLOCK_SKEW_NS
from kyverno_mp.background.objects.downstream import Downstream, Found
from kyverno_mp.background.objects.labels import rule_selector, trigger_of
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.update_request import GENERATE, Place, Task
from kyverno_mp.program.generate.labels import Origin


@dataclass(slots=True)
class _Old:
    """The objects that a rule generated before it changed."""

    origin: Origin
    targets: frozenset[bytes]
    unlisted: list[list[tuple[str, str]] | None]
    """The kinds that have to be listed; None = all kinds."""
    noticed: str
    """The time of the change; objects created earlier are surely older."""
    is_late: bool = False
    """Whether the changed rule may have generated objects since the change."""
    left: dict[str, Found] = field(default_factory=dict)
    """The objects by uid that still have the labels of the rule."""

    def has(self, generated: Found) -> bool:
        """Return whether the rule generated an object before it changed."""
        if not self.is_late:
            return True
        return bool(generated.created) and generated.created < self.noticed


@dataclass(slots=True)
class _Claim:
    """The objects that a changed rule wants before its old objects are listed."""

    targets: frozenset[bytes]
    places: set[Place] = field(default_factory=set)


class Moved:
    """Rules with changed targets; one policy is processed by one thread at a time.

    Any thread may call ``claim``.
    """

    def __init__(
        self,
        downstream: Downstream,
        submit: Callable[[Task], bool],
        now: Callable[[], datetime],
    ) -> None:
        """``submit`` queues a task for its trigger. ``now``: the wall-clock time."""
        self._downstream = downstream
        self._submit = submit
        self._now = now
        self._rules: dict[str, Mapping[str, GenerateRule]] = {}
        """The rules of a policy at the last sync."""
        self._old: dict[str, list[_Old]] = {}
        self._tasks: dict[str, dict[tuple[str, str], Task]] = {}
        """Tasks that the queue has not accepted yet, by rule and trigger."""
        self._lock = threading.Lock()
        self._claims: dict[Origin, _Claim] = {}

    def claim(
        self, policy: ReadyPolicy, rule: GenerateRule, places: Iterable[Place]
    ) -> None:
        """Keep the labels of objects that a rule is about to write.

        A request may be processed before the change of its policy, or before the old
        objects are listed.
        """
        name = policy.stored.name
        origin = Origin(name, rule.name)
        with self._lock:
            before = self._rules.get(name, {}).get(rule.name)
            is_moving = any(old.origin == origin for old in self._old.get(name, ()))
            if before is None or (before.targets == rule.targets and not is_moving):
                return
            claim = self._claims.get(origin)
            if claim is None or claim.targets != rule.targets:
                claim = self._claims[origin] = _Claim(rule.targets)
            claim.places.update(places)

    def forget(self, policy: str) -> None:
        """Drop a deleted policy."""
        self._tasks.pop(policy, None)
        with self._lock:
            self._rules.pop(policy, None)
            self._keep(policy, [])

    def _keep(self, policy: str, old: list[_Old]) -> None:
        """Keep what is not released yet; without it, claims are no longer needed."""
        if old:
            self._old[policy] = old
            return
        self._old.pop(policy, None)
        for origin in [claim for claim in self._claims if claim.policy == policy]:
            del self._claims[origin]

    def _is_claimed(self, origin: Origin, rule: GenerateRule | None, at: Place) -> bool:
        with self._lock:
            claim = self._claims.get(origin)
            if claim is None or rule is None or claim.targets != rule.targets:
                return False
            return at in claim.places

    def compare(self, ready: ReadyPolicy) -> list[Origin]:
        """Compare a policy with its last version; return the rules with new targets.

        KYVERNO: the old objects stay (pkg/policy/generate.go, ruleChange).

        SAFETY: they also stay if the policy was deleted and created again, although a
        deletion alone deletes them: another rule of the new policy, or the same rule
        with a differently written target, may generate the same objects.
        """
        policy, rules = ready.stored.name, ready.generates
        before = self._rules.get(policy, {})
        # A rule that generates the same objects again keeps them.
        old = [
            entry
            for entry in self._old.get(policy, ())
            if not _covers(rules.get(entry.origin.rule), entry.targets)
        ]
        for entry in old:
            entry.is_late = True
        moved: list[Origin] = []
        for name, rule in before.items():
            if name not in rules or _covers(rules[name], rule.targets):
                continue
            kinds = rule.downstream_kinds()
            moved.append(Origin(policy, name))
            old.append(
                _Old(
                    moved[-1],
                    rule.targets,
                    [None] if kinds is None else [[kind] for kind in kinds],
                    _surely_before(self._now()),
                )
            )
        with self._lock:
            self._rules[policy] = rules
            if old:
                self._old[policy] = old
            else:
                self._old.pop(policy, None)
        return moved

    def settle(self, ready: ReadyPolicy, refusals: Refusals) -> None:
        """Release old objects. Raises: DependencyErrors except rejections."""
        policy = ready.stored.name
        for old in self._old.get(policy, ()):
            self._list(old, ready.generates.get(old.origin.rule), refusals)
            for generated in list(old.left.values()):
                with refusals.kept():
                    self._downstream.release(generated, rule_selector(old.origin))
                    del old.left[generated.uid]
        unreleased = [
            old for old in self._old.get(policy, ()) if old.unlisted or old.left
        ]
        with self._lock:
            self._keep(policy, unreleased)

    def submit(self, policy: str) -> bool:
        """Submit the tasks of moved rules; return whether some were not accepted."""
        tasks = self._tasks.pop(policy, {})
        refused = {key: task for key, task in tasks.items() if not self._submit(task)}
        if refused:
            self._tasks[policy] = refused
        return bool(refused)

    def _list(self, old: _Old, rule: GenerateRule | None, refusals: Refusals) -> None:
        """List the objects of the kinds that were not listed yet."""
        follows = rule is not None and rule.synchronizes and rule.copies_data
        for kinds in list(old.unlisted):
            with refusals.kept():
                for generated in self._downstream.find(
                    rule_selector(old.origin), kinds
                ):
                    # The claim is older than the object, so a list that contains the
                    # object is followed by a look at the claim.
                    if not old.has(generated) or self._is_claimed(
                        old.origin, rule, generated.place
                    ):
                        continue
                    old.left[generated.uid] = generated
                    if follows:
                        self._keep_task(old.origin, generated)
                old.unlisted.remove(kinds)

    def _keep_task(self, origin: Origin, generated: Found) -> None:
        """Keep the task that generates the new object: only labels name the trigger."""
        trigger = trigger_of(generated.labels)
        if trigger is not None:
            task = Task(GENERATE, origin.policy, origin.rule, trigger)
            self._tasks.setdefault(origin.policy, {})[origin.rule, trigger.key] = task


def _surely_before(now: datetime) -> str:
    """Return a creation time that is before now by the API server's clock, too."""
    skew = timedelta(microseconds=CLOCK_SKEW_NS // 1000)
    return f"{now - skew:%Y-%m-%dT%H:%M:%SZ}"


def _covers(rule: GenerateRule | None, targets: frozenset[bytes]) -> bool:
    """Return whether a rule still has these targets."""
    return rule is not None and targets <= rule.targets
