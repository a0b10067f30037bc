"""Keep the list of resources that the API server serves, for policies and TTL labels.

Room: cleanup. Takes: a Client, what the leader of the pod publishes. Gives: Kinds.
Next: cleanup/runner.py, cleanup/ttl/watches.py. May touch: the API server through
kube/discovery.py, the clock.
Source: docs/behaviour/controllers 7 (TTL: Manager).
"""

import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.cleanup.plan import Plan
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.rest import Client

_REFRESH_PAUSE_S: Final = 5.0


class Kinds:
    """The latest Directory; threads may share it."""

    def __init__(
        self,
        client: Client,
        monotonic_s: Callable[[], float],
        published: Callable[[], Directory] = lambda: Directory(()),
    ) -> None:
        """``published`` returns the leader's directory, empty before the first."""
        self._discovery = Discovery(client)
        self._published = published
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._asked_s = -_REFRESH_PAUSE_S

    @property
    def directory(self) -> Directory:
        """The resources of the last discovery."""
        return self._discovery.directory

    def published(self) -> Directory | None:
        """Return the leader's directory without a call, None before the first."""
        directory = self._published()
        return directory if directory.resources else None

    def refresh(self) -> Directory:
        """Run discovery again. Raises: DependencyError."""
        with self._lock:
            self._discovery.refresh()
            self._asked_s = self._monotonic_s()
            return self._discovery.directory

    def directory_with(self, plan: Plan) -> Directory:
        """Return the directory; run discovery again if a kind of the policy is missing.

        Raises: DependencyError.
        """
        directory = self.published() or self._discovery.directory
        if all(kind.resources or kind.problem for kind in plan.kinds(directory)):
            return directory
        if (
            directory.resources
            and self._monotonic_s() - self._asked_s < _REFRESH_PAUSE_S
        ):
            # Another thread may have refreshed it in the meantime.
            return self._discovery.directory
        return self.refresh()
