"""Find triggers that admission could not record.

Room: background. Takes: an UpdateRequest that names a policy and a time. Gives:
LostTriggers, their Tasks. Next: background/requests.py. May touch: the API server
through the parts of this room.
Source: docs/pools.md 3 (a full journal); docs/background.md.

Triggers written since that time are processed as if each had its own UpdateRequest.
Objects generated for triggers that are gone or no longer match are deleted.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.background.existing import Existing
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import rule_selector, trigger_of
from kyverno_mp.background.policies import GenerateRule, ReadyPolicy
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.stored import StoredPolicies
from kyverno_mp.background.update_request import (
    GENERATE,
    MUTATE,
    StoredRequest,
    Task,
    Trigger,
)
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.program.generate.labels import Origin
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
CLOCK_SKEW_NS: Final = 60 * 10**9
"""The largest tolerated difference between the clocks of replicas and the API
server."""


@dataclass(frozen=True, slots=True)
class LostTriggers:
    """Finds lost triggers; threads may share it."""

    policies: StoredPolicies
    existing: Existing
    downstream: Downstream

    def tasks(self, one: StoredRequest, since_ns: int) -> Iterator[Task]:
        """Yield the tasks of the lost triggers.

        Raises: KubeRefused after the last task if a kind cannot be listed, because
        there may be more tasks; other DependencyErrors at once.
        """
        refusals = Refusals()
        for ready in self._policies(one.spec.policy):
            yield from self._of_policy(ready, one, since_ns - CLOCK_SKEW_NS, refusals)
        refusals.raise_first()

    def _policies(self, name: str) -> Iterator[ReadyPolicy]:
        """Yield the policy that the request names, or all policies."""
        for known in [name] if name else self.policies.names():
            stored = self.policies.live(known)
            if stored is None:
                continue
            try:
                yield self.policies.ready(stored)
            except PolicyInvalid as error:
                _log.warning(error.message, extra=fields(policy=known))

    def _of_policy(
        self,
        ready: ReadyPolicy,
        one: StoredRequest,
        since_ns: int,
        refusals: Refusals,
    ) -> Iterator[Task]:
        name = ready.stored.name

        def is_newer(raw: Json) -> bool:
            return written_ns(raw) >= since_ns

        for rule in ready.generates.values():
            triggers = self._of_downstream(Origin(name, rule.name), rule, refusals)
            triggers |= self.existing.triggers(ready.ir, rule, is_newer, refusals.add)
            for trigger in triggers.values():
                yield Task(
                    *(GENERATE, name, rule.name, trigger), request=one, is_whole=True
                )
        for mutation in ready.mutates.values():
            found = self.existing.triggers(ready.ir, mutation, is_newer, refusals.add)
            for trigger in found.values():
                yield Task(MUTATE, name, mutation.name, trigger, request=one)

    def _of_downstream(
        self, origin: Origin, rule: GenerateRule, refusals: Refusals
    ) -> dict[str, Trigger]:
        triggers: dict[str, Trigger] = {}
        if not rule.synchronizes:
            return triggers
        selector = rule_selector(origin)
        with refusals.kept():
            for found in self.downstream.find(selector, rule.downstream_kinds()):
                trigger = trigger_of(found.labels)
                if trigger is not None:
                    triggers[trigger.key] = trigger
        return triggers


def written_ns(raw: Json) -> int:
    """Return the time of the last write that an object's metadata shows.

    An object without times counts as newer than anything.
    """
    metadata = raw.get("metadata") or {}
    times = [metadata.get("creationTimestamp")]
    times += [one.get("time") for one in metadata.get("managedFields") or ()]
    return max((_ns(one) for one in times if one), default=_ns(""))


def _ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.max.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 if moment.tzinfo else 0
