"""Reconcile the statuses of policies after their webhooks are registered.

Room: controllers. Takes: PolicyStatuses, an Election, registered policies, policies
that workers serve. Gives: statuses in the API server. Next: none.
May touch: the API server through kube, the clock. Source:
docs/behaviour/controllers 1.2, 3.8.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.controllers.policy_status import (
    InForce,
    PolicyStatuses,
    Reported,
    Served,
    name_of,
)
from kyverno_mp.controllers.webhook_config.controller import (
    Registered,
    WebhookController,
)
from kyverno_mp.kube.lease import Election
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result

NAME: Final = "policy-status-controller"
ALL: Final = "all"
"""The only key; unchanged statuses cost nothing."""


class PolicyStatusController:
    """The lease holder's policy statuses; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        statuses: PolicyStatuses,
        election: Election,
        clock: Clock,
        *,
        webhooks: WebhookController,
        served: Callable[[], Served],
        lagging: Callable[[Reported], Sequence[str]],
    ) -> None:
        """Take ``statuses`` that are written only on the lease holder.

        ``served`` returns the policies that every worker of this pod has in force.
        ``lagging`` returns the other replicas that do not enforce a policy yet.
        """
        self._statuses = statuses
        self._election = election
        self._clock = clock
        self._webhooks = webhooks
        self._served = served
        self._lagging = lagging
        self._term = 0
        self._settled: tuple[Registered, Served, bool, int] | None = None

    def reconcile(self, _key: str) -> Result:
        """Write changed statuses; retry soon while workers lag behind the policies.

        Raises: DependencyError, LeaseLost.
        """
        registered = self._webhooks.registered
        if registered is None or not self._election.holds():
            return Result()
        if registered.term != self._election.terms_held:
            # From an earlier term; the webhook controller must register again first.
            return Result()
        if registered.term != self._term:
            self._term = registered.term
            self._statuses.forget()
            self._settled = None
        answers, served = self._webhooks.answers(), self._served()
        version = self._statuses.status_version
        if self._is_settled(registered, served, answers=answers):
            return Result()
        known, ended = self._statuses.write(
            (*registered.policies, *registered.cel),
            served if answers else _not_ready(registered),
            self._clock.now(),
            self._lagging,
        )
        if not ended:
            return Result(after_s=0.0)
        if known:
            self._settled = registered, served, answers, version
        return Result(retry=not known)

    def _is_settled(
        self, registered: Registered, served: Served, *, answers: bool
    ) -> bool:
        """Return whether everything is written.

        PERF: workers also attach segments that change no status.
        """
        if self._settled is None:
            return False
        before, before_served, before_answers, before_version = self._settled
        same = before is registered and before_served is served
        same = same and before_version == self._statuses.status_version
        return same and before_answers == answers


def _not_ready(registered: Registered) -> Served:
    return {
        name_of(policy): InForce(ready=False, generation=policy.metadata.generation)
        for policy in (*registered.policies, *registered.cel)
    }
