"""Collect the counts of the leader's threads for its metric page.

Room: leader. Takes: the client, informers, counts of controllers. Gives: LeaderMetrics,
whose ``write`` the leader's loop calls, and the failing resources.
Next: telemetry/record.py, leader/control/health.py. May touch: the clock.
Source: docs/behaviour/controllers 9.2.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import ADMISSION_ACCOUNT, MissingRights
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.control.health import FailingResource
from kyverno_mp.telemetry.families import (
    DEFECTS,
    EXCEPTIONS,
    GENERATED_POLICIES,
    QUERIES,
    RECONCILED,
    REQUEUED,
    RIGHTS_MISSING,
    ROLLOUT_FALL_BACKS,
    ROLLOUTS,
    WATCH_FAILURES,
    WATCH_SILENCE,
    WATCHED,
)
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.values.kubernetes.policy_kinds import CEL_GROUP

_IN_A_ROW_MAX: Final = 10
"""Longer series of failures share one label; upstream stops retrying at this number."""


class LeaderMetrics:
    """Counts of the leader's threads; thread-safe except ``write`` and ``failing``."""

    def __init__(self, client: Client, account: str = ADMISSION_ACCOUNT) -> None:
        """``account``: the name of the client's ServiceAccount."""
        self._queries = Tally()
        self._reconciled = Tally()
        self._requeued = Tally()
        self._defects = Tally()
        self.informers: Sequence[Informer[Any]] = ()
        self.generated: Callable[[], Mapping[str, int]] = dict
        """Returns the number of generated admission policies by kind."""
        self.rollouts: Callable[[], Mapping[str, int]] = dict
        """Returns the number of gradually enforced policies by phase."""
        self.exceptions: Callable[[], Mapping[str, int]] = dict
        """Returns the number of PolicyExceptions by state."""
        self._fall_backs = Tally()
        self._failing_ns: dict[str, int] = {}
        client.on_query = self._queries.add
        self.rights = client.rights = MissingRights(account)
        """The permissions that the account lacks."""

    def reconciled(self, controller: str, failures: int | None) -> None:
        """Count a reconcile; ``failures``: consecutive failures before a retry."""
        self._reconciled.add((controller,))
        if failures is not None:
            times = str(min(failures, _IN_A_ROW_MAX))
            self._requeued.add((controller, times))

    def fell_back(self) -> None:
        """Count a policy that fell back to its last completed step."""
        self._fall_backs.add(())

    def unexpected_error(self, controller: str) -> None:
        """Count a reconcile that ended with an unexpected exception."""
        self._defects.add((controller,))

    def write(self, recorder: Recorder) -> None:
        """Write all counts to the page; call it in the page's writer thread."""
        for family, tally in (
            (QUERIES, self._queries),
            (RECONCILED, self._reconciled),
            (REQUEUED, self._requeued),
            (DEFECTS, self._defects),
            (ROLLOUT_FALL_BACKS, self._fall_backs),
        ):
            series = recorder.series(family)
            for labels, count in tally.drain().items():
                series.count(labels, float(count))
        for kind, count in self.generated().items():
            recorder.series(GENERATED_POLICIES).hold((kind,), count)
        for phase, count in self.rollouts().items():
            recorder.series(ROLLOUTS).hold((phase,), count)
        for state, count in self.exceptions().items():
            recorder.series(EXCEPTIONS).hold((state,), count)
        for right, value in self.rights.gauges():
            labels = (self.rights.account, *right)
            recorder.series(RIGHTS_MISSING).hold(labels, value)
        now_ns = time.monotonic_ns()
        for informer in self.informers:
            resource = (_name_of(informer.scope),)
            recorder.series(WATCHED).hold(resource, len(informer))
            # A missing kind in an older installation is not a failure.
            failures = 0 if informer.is_absent else informer.failures
            recorder.series(WATCH_FAILURES).hold(resource, failures)
            if informer.last_message_ns:
                silence_s = (now_ns - informer.last_message_ns) / 1e9
                recorder.series(WATCH_SILENCE).hold(resource, round(silence_s, 3))

    def failing(self, now_ns: int) -> tuple[FailingResource, ...]:
        """Return the unreadable resources, and since when.

        Call it in one thread, often. A success resets the time.
        """
        before = self._failing_ns
        failing = [
            informer
            for informer in self.informers
            if informer.failures and not informer.is_absent
        ]
        names = [_name_of(informer.scope) for informer in failing]
        self._failing_ns = {name: before.get(name, now_ns) for name in names}
        return tuple(
            FailingResource(name, self._failing_ns[name], informer.last_error)
            for name, informer in zip(names, failing, strict=True)
        )


def _name_of(scope: WatchScope) -> str:
    """Return e.g. ``configmaps``, or ``configmaps/kyverno`` for a single object.

    Two groups have PolicyExceptions; the group of policies in CEL is added.
    """
    name = scope.field_selector.removeprefix("metadata.name=")
    plural, group = scope.resource.plural, scope.resource.group
    if group == CEL_GROUP:
        plural = f"{plural}.{group}"
    return f"{plural}/{name}" if name else plural
