"""Assemble the parts of the pool that carry out GeneratingPolicies.

Room: background. Takes: the parts that generate rules use as well. Gives:
GeneratingParts. Next: background/start.py. May touch: nothing before it is started.
Source: docs/pools.md 1.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.downstream import Downstream
from kyverno_mp.background.generating.evaluate import Evaluation
from kyverno_mp.background.generating.events import GeneratingEvents
from kyverno_mp.background.generating.existing import ExistingTriggers
from kyverno_mp.background.generating.policies import GeneratingPolicies
from kyverno_mp.background.generating.register import Register
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.generating.watches import Watches, follow_recorded
from kyverno_mp.background.kinds import Kinds
from kyverno_mp.background.policies import policy_key
from kyverno_mp.background.triggers import Triggers
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key

_FAILING: Final = 3
_NOT_SERVED: Final = re.compile(r"HTTP 404\b")


class GeneratingParts:
    """The parts, wired so that a change of one reaches the others."""

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
        self._add_policy = add_policy
        self.policies = GeneratingPolicies(dependencies.client, settings.exceptions_in)
        self.register = Register(
            dependencies.client,
            settings.namespace,
            downstream.guard,
            self._follow,
        )
        self.watches = Watches(
            dependencies.client, kinds, downstream, submit, self._dropped
        )
        self.events = GeneratingEvents(
            dependencies,
            self.policies,
            ExistingTriggers(dependencies, kinds),
            downstream,
            self.register,
            submit,
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
        for informer in self.policies.policies:
            informer.on_change(add_policy)
        self._adopted: set[str] = set()
        self._is_following = False

    def adopt(self) -> None:
        """Do what is due: follow the recorded kinds, reconcile recorded policies.

        Only those of a kind that is listed: a policy that is not yet is not gone.
        """
        if not self._is_following:
            self._follow()
        for informer in self.policies.policies:
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
        """Return what is wrong at the moment."""
        found = [
            f"watch of {one.scope.resource.plural}: {one.last_error}"
            for one in self.policies.informers
            if one.failures >= _FAILING and not _is_absent(one)
        ]
        return [*found, *self.watches.problems()]

    def _follow(self) -> None:
        """Follow what is recorded; ``adopt`` tries again after a failure."""
        self._is_following = follow_recorded(self.watches, self.register.kinds)

    def _dropped(self, policy: str) -> None:
        """Sync a policy of which a task found no place in the queue."""
        self.events.forget_sync(policy)
        self._add_policy(policy_key(policy))


def _is_absent(informer: Informer[Any]) -> bool:
    """Return whether an older installation of Kyverno's CRDs lacks the kind."""
    return bool(informer.failures and _NOT_SERVED.search(informer.last_error))
