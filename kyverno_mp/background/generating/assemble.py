"""Assemble the parts of the pool that run GeneratingPolicies.

Room: background. Takes: the parts shared with generate rules. Gives: GeneratingParts.
Next: background/start.py. May touch: nothing before it is started.
Source: docs/pools.md 1.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generating.evaluate import Evaluation
from kyverno_mp.background.generating.events import GeneratingEvents
from kyverno_mp.background.generating.policies import generators
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.generating.watches import Watches
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.policies import policy_key
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.register import KindRegister
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.resource import Key
from kyverno_mp.pool.term import watch_problems
from kyverno_mp.telemetry.families import BACKGROUND_UNWATCHED

_log = logging.getLogger(__name__)
_FOLLOW_AGAIN_S: Final = 30.0
"""Pause before kinds that the API server did not serve are looked up again."""


class GeneratingParts:
    """The parts that run GeneratingPolicies, connected to each other."""

    def __init__(
        self,
        dependencies: BackgroundDependencies,
        kinds: Kinds,
        triggers: Triggers,
        downstream: Downstream,
        *,
        submit: Callable[[Task], bool],
        add_policy: Callable[[Key], None],
    ) -> None:
        """``submit`` queues a task, ``add_policy`` the key of a policy."""
        settings = dependencies.settings
        self._dependencies = dependencies
        self._add_policy = add_policy
        self.policies = generators(dependencies.client, settings.exceptions_in)
        self.register = KindRegister(
            dependencies.client,
            settings.namespace,
            downstream.guard,
            self._follow,
        )
        self.watches = Watches(
            *(dependencies.client, kinds, downstream, submit, self._sync_again),
            on_listed=lambda policy: add_policy(policy_key(policy)),
        )
        self.events = GeneratingEvents(
            dependencies,
            self.policies,
            Existing(dependencies, kinds),
            downstream,
            self.register,
            submit=submit,
            awaits_watches=self.watches.awaits,
        )
        self.generating = Generating(
            dependencies,
            self.policies,
            triggers,
            downstream,
            self.register,
            Evaluation(dependencies, self.policies, kinds),
            add_policy,
        )
        for informer in self.policies.stored.informers:
            informer.on_change(add_policy)
        self._adopted: set[str] = set()
        self._is_following = False
        self._followed_s = 0.0
        """When the recorded kinds were looked up, in monotonic seconds."""
        self._following = threading.Lock()
        self._reported: dict[str, tuple[str, float]] = {}
        """Each policy with unwatched objects: the reported kinds, and when they were
        reported."""

    def adopt(self) -> None:
        """Watch the recorded kinds and reconcile the recorded policies, if due.

        Policies are reconciled only after their kind was listed; until then, a missing
        policy may still exist. A recorded kind may be served later, e.g. because its
        CRD is replaced, or because an aggregated API server is down.
        """
        if not self._is_following or self._lacks_kinds():
            self._follow()
        for informer in self.policies.stored.informers:
            resource = informer.scope.resource
            if not informer.synced or resource.kind in self._adopted:
                continue
            try:
                names = self.register.policies()
            except DependencyError:
                return
            self._adopted.add(resource.kind)
            for key in map(policy_key, names):
                if bool(key[0]) is resource.namespaced:
                    self._add_policy(key)

    def problems(self) -> list[str]:
        """Return the current problems."""
        served = (
            informer for informer in self.policies.informers if not informer.is_absent
        )
        return [*watch_problems(served), *self.watches.problems()]

    def _lacks_kinds(self) -> bool:
        """Return whether kinds that were not served are to be looked up again."""
        since_s = self._dependencies.clock.monotonic_s() - self._followed_s
        return not self.watches.is_complete and since_s >= _FOLLOW_AGAIN_S

    def _follow(self) -> None:
        """Watch the recorded kinds; after a failure, ``adopt`` tries again."""
        # The lock makes the last call of ``follow`` use the newest record.
        with self._following:
            self._followed_s = self._dependencies.clock.monotonic_s()
            again: set[str] = set()
            try:
                again = self.watches.follow(self.register.written())
            except DependencyError as error:
                _log.warning(error.message)
                self._is_following = False
            else:
                self._is_following = True
        for policy in again:
            # No watch has seen what happened to the objects in the meantime.
            self._sync_again(policy)

    def report_unwatched(self) -> None:
        """Report for each policy which of its generated kinds are not watched."""
        unwatched = self.watches.unwatched()
        events, metrics = self._dependencies.events, self._dependencies.metrics
        metrics.hold(BACKGROUND_UNWATCHED, (), float(sum(map(len, unwatched.values()))))
        now_s = self._dependencies.clock.monotonic_s()
        again_s = now_s - self._dependencies.settings.background_scan_interval_s
        for policy in self._reported.keys() - unwatched.keys():
            del self._reported[policy]
        for policy, kinds in unwatched.items():
            description = ", ".join(
                f"{kind} ({reason})" for kind, reason in kinds.items()
            )
            reported, at_s = self._reported.get(policy, ("", 0.0))
            stored = self.policies.get(policy)
            if stored is not None and (reported != description or at_s < again_s):
                self._reported[policy] = description, now_s
                PolicyRecorder(stored, events, metrics).unwatched(description)

    def _sync_again(self, policy: str) -> None:
        """Sync a policy, e.g. after the queue rejected one of its tasks."""
        self.events.forget_sync(policy)
        self._add_policy(policy_key(policy))
