"""Find triggers that admission could not record.

Room: background. Takes: an UpdateRequest that names a policy and a time. Gives:
LostTriggers, their Tasks. Next: background/requests.py. May touch: the API server
through the parts of this room.
Source: docs/pools.md 3 (a full journal); docs/background.md.

Triggers written since that time are processed as if each had its own UpdateRequest.
Objects generated for triggers that are gone or no longer match are deleted.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing, written_ns
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import rule_selector, trigger_of
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy, StoredPolicy
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.stored import RulePolicies
from kyverno_mp.background.update_request import (
    GENERATE,
    MUTATE,
    StoredRequest,
    Task,
    Trigger,
)
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.program.generate.labels import Origin
from kyverno_mp.program.generate.requester import needs_review
from kyverno_mp.telemetry.families import BACKGROUND_REQUESTS
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
DROPPED: Final = "dropped_without_review"
_LEFT_OUT: Final = (
    "it is not run for new objects, because only their reviews tell who wrote them"
    " and what they were before, and the reviews were not proved or not recorded;"
    " number of objects"
)
CLOCK_SKEW_NS: Final = 60 * 10**9
"""The largest tolerated difference between the clocks of replicas and the API
server."""


@dataclass(frozen=True, slots=True)
class LostTriggers:
    """Finds lost triggers; threads may share it."""

    policies: RulePolicies
    existing: Existing
    downstream: Downstream
    dependencies: BackgroundDependencies

    def tasks(
        self, request: StoredRequest, since_ns: int, *, is_last: bool = True
    ) -> Iterator[Task]:
        """Yield the tasks of the lost triggers; mutations only in the last look.

        Raises: KubeRefused after the last task if a kind cannot be listed, because
        there may be more tasks; other DependencyErrors at once.
        """
        refusals = Refusals()
        for ready in self._policies(request.spec.policy):
            began_ns = since_ns - CLOCK_SKEW_NS
            yield from self._generations(ready, request, began_ns, refusals, is_last)
            if is_last:
                yield from self._mutations(ready, request, began_ns, refusals)
        refusals.raise_first()

    def _policies(self, name: str) -> Iterator[ReadyPolicy]:
        """Yield the policy that the request names, or all policies."""
        for policy in [name] if name else self.policies.names():
            stored = self.policies.live(policy)
            if stored is None:
                continue
            try:
                yield self.policies.ready(stored)
            except PolicyInvalid as error:
                _log.warning(error.message, extra=fields(policy=policy))

    def _generations(
        self,
        ready: ReadyPolicy,
        request: StoredRequest,
        since_ns: int,
        refusals: Refusals,
        is_last: bool,  # noqa: FBT001 - passed on
    ) -> Iterator[Task]:
        name = ready.stored.name
        for rule in ready.generates.values():
            triggers = self._of_downstream(Origin(name, rule.name), rule, refusals)
            newer = self.existing.triggers(
                *(ready.ir, rule, _written_since(since_ns), refusals.add)
            )
            is_reviewed = needs_review(rule.linked.ir)
            if is_reviewed and is_last:
                leave_out(self.dependencies, ready.stored, rule.name, newer)
            lost = {} if is_reviewed else newer_first(newer, triggers)
            if is_last:
                lost |= triggers
            for trigger in lost.values():
                yield Task(
                    *(GENERATE, name, rule.name, trigger),
                    request=request,
                    is_whole=True,
                )

    def _mutations(
        self,
        ready: ReadyPolicy,
        request: StoredRequest,
        since_ns: int,
        refusals: Refusals,
    ) -> Iterator[Task]:
        name = ready.stored.name
        for mutation in ready.mutates.values():
            newer_triggers = self.existing.triggers(
                *(ready.ir, mutation, _written_since(since_ns), refusals.add)
            )
            # A mutation that is repeated may have another result.
            if request.is_unproved or needs_review(mutation.linked.ir):
                leave_out(
                    *(self.dependencies, ready.stored, mutation.name, newer_triggers),
                    mutates=True,
                )
                continue
            for trigger in newer_triggers.values():
                yield Task(MUTATE, name, mutation.name, trigger, request=request)

    def _of_downstream(
        self, origin: Origin, rule: GenerateRule, refusals: Refusals
    ) -> dict[str, Trigger]:
        triggers: dict[str, Trigger] = {}
        if not rule.synchronizes:
            return triggers
        selector = rule_selector(origin)
        with refusals.kept():
            for generated in self.downstream.find(selector, rule.downstream_kinds()):
                trigger = trigger_of(generated.labels)
                if trigger is not None:
                    triggers[trigger.key] = trigger
        return triggers


def newer_first(
    newer: Mapping[str, Trigger], known: Mapping[str, Trigger]
) -> dict[str, Trigger]:
    """Return the newer triggers, first those without generated objects.

    Only these lack something for sure, and a look may end early.
    """
    new = {key: trigger for key, trigger in newer.items() if key not in known}
    return new | dict(newer)


def _written_since(since_ns: int) -> Callable[[Json], bool]:
    return lambda raw: written_ns(raw) >= since_ns


def leave_out(
    dependencies: BackgroundDependencies,
    policy: StoredPolicy,
    rule: str,
    triggers: Mapping[str, Trigger],
    *,
    mutates: bool = False,
) -> None:
    """Report a rule that cannot be run for triggers without their reviews."""
    if not triggers:
        return
    recorder = PolicyRecorder(policy, dependencies.events, dependencies.metrics)
    first, count = next(iter(triggers.values())), len(triggers)
    recorder.failed(rule, first, f"{_LEFT_OUT}: {count}", mutates=mutates)
    kind = MUTATE if mutates else GENERATE
    dependencies.metrics.count(BACKGROUND_REQUESTS, (kind, DROPPED))
