"""Preview what generate rules would create, update and delete now.

Room: background. Takes: a ReadyPolicy. Gives: Planned objects, problems; Planner.
Next: cli/generate.py; background/generating/preview.py is the preview of
GeneratingPolicies.
May touch: the API server through the parts of this room, reading and with dry runs.
Source: docs/background.md (preview).

The preview uses the parts of the pool, so that both have the same result. The guard of
these parts rejects every write.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate.generator import Generator, place_of
from kyverno_mp.background.objects.content import bare, has_same_content, over
from kyverno_mp.background.objects.downstream import Downstream, Found
from kyverno_mp.background.objects.labels import (
    Selector,
    rule_selector,
    selects,
    trigger_of,
    trigger_selector,
)
from kyverno_mp.background.objects.triggers import Triggers, is_ending
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy, StoredPolicy
from kyverno_mp.background.register import RuleRegister
from kyverno_mp.background.update_request import GENERATE, Task, Trigger
from kyverno_mp.errors import DependencyError, InputError, KubeRefused
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.generate.labels import SOURCE_UID, Origin
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.values.jsonvalue import Json

CREATE: Final = "create"
UPDATE: Final = "update"
DELETE: Final = "delete"


class Planned(NamedTuple):
    """A planned change of an object. ``trigger`` None: its rule is gone.

    ``before``, ``after``: the parts of the object that a rule determines; None = no
    object.
    """

    action: str
    rule: str
    trigger: Trigger | None
    resource: Resource
    namespace: str
    name: str
    before: Json | None
    after: Json | None


@dataclass(slots=True)
class Preview:
    """The planned changes of one policy."""

    stored: StoredPolicy
    planned: list[Planned] = field(default_factory=list)
    unchanged: int = 0
    problems: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    """Rules without generateExisting, which apply only when an object changes."""


class Cause(NamedTuple):
    """The reason for a write or deletion. ``trigger`` None: its rule is gone."""

    rule: str
    trigger: Trigger | None


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans writes by reading and by dry runs."""

    objects: Objects
    downstream: Downstream

    def write(
        self,
        cause: Cause,
        generated: Generated,
        *,
        synchronizes: bool,
        server_side: bool,
        owned: Selector | None = None,
    ) -> Planned | None:
        """Return the planned change of one object; None if it would not change.

        ``owned``: see ``Downstream.write``. Raises: ExpressionFailed, DependencyError.
        """
        resource, raw = self.downstream.resolved(generated)
        namespace, name = key_of(raw)
        live = self.objects.find(resource, (namespace, name))
        identity = (*cause, resource, namespace, name)
        if live is None:
            return Planned(CREATE, *identity, None, bare(raw, raw))
        if not synchronizes:
            return None
        labels = live["metadata"].get("labels") or {}
        if owned is not None and not selects(owned, labels):
            return None
        after = raw if server_side else over(live, raw)
        if has_same_content(live, after, raw):
            return None
        try:
            # The API server adds defaults, and other webhooks may change the object.
            after = self._tried(resource, after, server_side=server_side)
        except KubeRefused as error:
            if error.code != "kube.forbidden":
                raise
        if has_same_content(live, after, after):
            return None
        return Planned(UPDATE, *identity, bare(live, after), bare(after, after))

    def _tried(self, resource: Resource, raw: Json, *, server_side: bool) -> Json:
        if server_side:
            return self.objects.try_apply(resource, raw)
        return self.objects.try_replace(resource, raw)

    def delete(self, cause: Cause, generated: Found) -> Planned:
        """Return the planned deletion of an object. Raises: DependencyError."""
        live = self.objects.find(generated.resource, generated.key)
        before = None if live is None else bare(live, live)
        return Planned(DELETE, *cause, generated.resource, *generated.key, before, None)


@dataclass(frozen=True, slots=True)
class Previewer:
    """Compares the objects that rules generate with the existing ones."""

    generator: Generator
    existing: Existing
    register: RuleRegister
    planner: Planner

    @property
    def _downstream(self) -> Downstream:
        return self.generator.downstream

    @property
    def _triggers(self) -> Triggers:
        return self.generator.triggers

    def preview(self, policy: ReadyPolicy) -> Preview:
        """Return the planned changes of a policy. Raises: DependencyError."""
        rules = policy.generates.values()
        later = sorted(rule.name for rule in rules if not rule.existing)
        preview = Preview(policy.stored, later=later)
        for rule in rules:
            for trigger in self._all_triggers(policy, rule, preview):
                self._add(policy, preview, rule, trigger)
        preview.planned += self._of_removed(policy, preview)
        return preview

    def _all_triggers(
        self, policy: ReadyPolicy, rule: GenerateRule, preview: Preview
    ) -> list[Trigger]:
        """Return the objects that match, and the triggers of generated objects."""
        triggers = self.existing.triggers(
            policy.ir,
            rule,
            on_refused=lambda error: preview.problems.append(error.message),
        )
        if rule.synchronizes:
            selector = rule_selector(Origin(policy.stored.name, rule.name))
            kinds = rule.downstream_kinds()
            for generated in self._listed(selector, kinds, preview):
                trigger = trigger_of(generated.labels)
                if trigger is not None:
                    triggers.setdefault(trigger.key, trigger)
        return list(triggers.values())

    def _listed(
        self,
        selector: Selector,
        kinds: Collection[tuple[str, str]] | None,
        preview: Preview,
    ) -> Iterator[Found]:
        """Yield generated objects; record a kind that cannot be listed as a problem."""
        try:
            yield from self._downstream.find(selector, kinds)
        except KubeRefused as error:
            if error.message not in preview.problems:
                preview.problems.append(error.message)

    def _add(
        self,
        policy: ReadyPolicy,
        preview: Preview,
        rule: GenerateRule,
        trigger: Trigger,
    ) -> None:
        try:
            planned = list(self._of_trigger(policy, preview, rule, trigger))
        except (InputError, DependencyError) as error:
            preview.problems.append(f"{rule.name}, {trigger.shown}: {error.message}")
        else:
            preview.planned += planned

    def _of_trigger(
        self,
        policy: ReadyPolicy,
        preview: Preview,
        rule: GenerateRule,
        trigger: Trigger,
    ) -> Iterator[Planned]:
        """Yield the changes for one trigger. Raises: InputError, DependencyError."""
        cause = Cause(rule.name, trigger)
        live = self._triggers.find(trigger)
        objects: list[Generated] = []
        applies = False
        if live is not None and not is_ending(live):
            task = Task(GENERATE, policy.stored.name, rule.name, trigger)
            applied = self.generator.evaluate(task, policy, rule, live)
            if applied is not None:
                applies, objects = True, applied.objects
                if applied.problem is not None:
                    preview.problems.append(
                        f"{rule.name}, {trigger.shown}: {applied.problem.message}"
                    )
        for generated in objects:
            planned = self.planner.write(
                cause,
                generated,
                synchronizes=rule.synchronizes,
                server_side=policy.server_side_apply,
            )
            if planned is None:
                preview.unchanged += 1
            else:
                yield planned
        if rule.synchronizes:
            origin = Origin(policy.stored.name, rule.name)
            places = {self._downstream.place_of(generated) for generated in objects}
            lacks_source = self.generator.lacks_source(policy, rule)
            for each in self._owned(origin, rule, trigger):
                if place_of(each) in places:
                    continue
                try:
                    # As in the pool, objects of a rule that still applies stay.
                    is_stale = not applies or lacks_source(each)
                except KubeRefused as error:
                    if error.message not in preview.problems:
                        preview.problems.append(error.message)
                    continue
                if is_stale:
                    yield self.planner.delete(cause, each)

    def _owned(
        self, origin: Origin, rule: GenerateRule, trigger: Trigger
    ) -> list[Found]:
        selector = trigger_selector(origin, trigger)
        return list(self._downstream.find(selector, rule.downstream_kinds()))

    def _of_removed(self, policy: ReadyPolicy, preview: Preview) -> Iterator[Planned]:
        """Yield deletions for rules that only the stored policy contains."""
        name = policy.stored.name
        for rule, kinds in self.register.of(name).items():
            if rule in policy.generates:
                continue
            selector = rule_selector(Origin(name, rule))
            for generated in self._listed(selector, kinds, preview):
                if not generated.labels.get(SOURCE_UID):
                    cause = Cause(rule, trigger_of(generated.labels))
                    yield self.planner.delete(cause, generated)
