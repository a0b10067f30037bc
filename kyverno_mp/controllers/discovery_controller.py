"""Reconcile this pod's view of the API server's resources.

Room: controllers. Takes: a Discovery. Gives: an up-to-date Directory. Next: dependents,
through ``on_change``: webhooks, global context entries.
May touch: the API server through kube. Source: Kubernetes API discovery.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.queues.reconcile import Result

NAME: Final = "discovery-controller"
ALL: Final = "all"
CRDS: Final = "customresourcedefinitions"
"""The key for changed CRDs; it triggers several refreshes, until their kinds are
served."""
_RESYNC_S: Final = 60.0
_STALE_S: Final = 10.0
"""The refresh interval while an aggregated API server does not answer and its resources
are missing or out of date."""
_ROUND_S: Final = 1.0
_NEW_KIND_ROUNDS: Final = 5
"""K8S: the API server serves a new CRD shortly after it is established."""
_SETTLING_ROUNDS: Final = 1
"""K8S: a starting API server publishes its CRDs one by one, so each change triggers one
more refresh."""


class DiscoveryController:
    """Schedules discovery; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        refresh_now: Callable[[], object],
        on_change: Callable[[], object],
    ) -> None:
        """``refresh_now`` adds the key ``ALL``."""
        self._discovery = discovery
        self._refresh_now = refresh_now
        self._on_change = on_change
        self._rounds_left = 0

    def reconcile(self, key: str) -> Result:
        """Refresh the list of served resources. Raises: DependencyError."""
        if key == CRDS:
            self._rounds_left = _NEW_KIND_ROUNDS
            self._refresh_now()
            return Result()
        changed = self._discovery.refresh()
        self._rounds_left = max(0, self._rounds_left - 1)
        if changed:
            self._rounds_left = max(self._rounds_left, _SETTLING_ROUNDS)
            self._on_change()
        if self._rounds_left:
            return Result(after_s=_ROUND_S)
        return Result(after_s=_STALE_S if self._discovery.stale else _RESYNC_S)
