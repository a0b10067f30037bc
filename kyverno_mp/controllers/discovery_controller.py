"""Reconcile what this pod knows of the API server's resources.

Room: controllers. Takes: a Discovery. Gives: its Directory, fresh. Next: who depends on
it, through ``on_change``: webhooks, global context entries.
May touch: the API server through kube. Source: Kubernetes API discovery.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.queues.reconcile import Result

NAME: Final = "discovery-controller"
ALL: Final = "all"
CRDS: Final = "customresourcedefinitions"
"""The key of a change of CRDs; what they bring is looked for several times."""
_RESYNC_S: Final = 60.0
_STALE_S: Final = 10.0
"""What a silent server serves was left out, or is of before."""
_ROUND_S: Final = 1.0
_NEW_KIND_ROUNDS: Final = 5
"""K8S: a new CRD is served a moment after it is established."""
_SETTLING_ROUNDS: Final = 1
"""K8S: a server that has just started tells of its CRDs one by one: after a change it
is asked once more."""


class DiscoveryController:
    """When the API server is asked next; ``reconcile`` is for one thread."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        look: Callable[[], object],
        on_change: Callable[[], object],
    ) -> None:
        """``look`` adds the key ``ALL``."""
        self._discovery = discovery
        self._look = look
        self._on_change = on_change
        self._rounds_left = 0

    def reconcile(self, key: str) -> Result:
        """Ask the API server what it serves. Raises: DependencyError."""
        if key == CRDS:
            self._rounds_left = _NEW_KIND_ROUNDS
            self._look()
            return Result()
        changed = self._discovery.refresh()
        self._rounds_left = max(0, self._rounds_left - 1)
        if changed:
            self._rounds_left = max(self._rounds_left, _SETTLING_ROUNDS)
            self._on_change()
        if self._rounds_left:
            return Result(after_s=_ROUND_S)
        return Result(after_s=_STALE_S if self._discovery.stale else _RESYNC_S)
