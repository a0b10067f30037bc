"""Run TTL clean-up with a thread that manages watches and workers for the timers.

Room: cleanup. Takes: CleanupDependencies. Gives: TtlCleanup. Next: cleanup/start.py.
May touch: threads, the clock, the log; the API server through modules of this room.
Source: docs/behaviour/controllers 7 (TTL: Manager), 14.29.
"""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Final

from kyverno_mp.cleanup.deletion import Deleter
from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.kinds import Kinds
from kyverno_mp.cleanup.ttl.timers import Timers
from kyverno_mp.cleanup.ttl.watches import Watches
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.own_access import OwnAccess

_log = logging.getLogger(__name__)
_WORKERS: Final = 8
"""Equals the number of connections of the pool; a deletion takes a few milliseconds."""
_TICK_S: Final = 30.0
_RETRY_S: Final = 5.0
_GRANTS_S: Final = 15.0
"""Within this time, a kind that the account may now delete is watched. Kinds need
discovery, which costs more calls."""
_STOP_S: Final = 3.0
_SOURCE: Final = "ttl"


class TtlCleanup:
    """The threads of TTL clean-up."""

    def __init__(
        self, dependencies: CleanupDependencies, kinds: Kinds, access: OwnAccess
    ) -> None:
        self._interval_s = float(dependencies.settings.cleanup_discovery_s)
        self._kinds = kinds
        self._stopping = threading.Event()
        self.timers = Timers(
            dependencies, Deleter(dependencies.client, self._holds(dependencies))
        )
        self.watches = self.timers.watches = Watches(
            dependencies.client,
            access,
            dependencies.bound_namespaces,
            dependencies.metrics,
            self.timers.on_change,
        )
        self._rights = dependencies.rights
        self._failure = ""
        self._threads = [
            threading.Thread(target=self.timers.work, name="ttl-delete", daemon=True)
            for _ in range(_WORKERS)
        ]
        manage = threading.Thread(target=self._manage, name="ttl-watches", daemon=True)
        self._threads.append(manage)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads; wait for calls in progress."""
        self._stopping.set()
        self.timers.queue.shut_down(drain=False)
        end_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        self.watches.stop()
        self._rights.hold(_SOURCE, {})

    def problems(self) -> Iterator[str]:
        """Yield the current problems."""
        self._rights.hold(_SOURCE, self.watches.undeletable())
        if self._failure:
            yield self._failure
        yield from self.watches.problems()

    def refresh(self, *, discovers: bool = True) -> None:
        """Watch the resources that the account may watch. Raises: DependencyError.

        ``discovers``: whether to ask for new kinds, not only for new permissions.
        """
        kinds = self._kinds
        directory = kinds.published()
        if directory is None:
            directory = kinds.refresh() if discovers else kinds.directory
        # Three questions for each kind are too many every few seconds.
        self.watches.refresh(directory, trusts_rules=not discovers)

    def _holds(self, dependencies: CleanupDependencies) -> "_Holds":
        return _Holds(dependencies, self._stopping)

    def _manage(self) -> None:
        due_s = resync_s = discover_s = time.monotonic()
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s >= due_s:
                discovers = now_s >= discover_s
                due_s = now_s + self._try_to_refresh(discovers=discovers)
                if discovers and not self._failure:
                    discover_s = now_s + self._interval_s
            if now_s >= resync_s:
                self.timers.resync()
                resync_s = now_s + _TICK_S
            left_s = min(due_s, resync_s) - time.monotonic()
            self._stopping.wait(max(0.0, left_s))

    def _try_to_refresh(self, *, discovers: bool) -> float:
        """Refresh; return the seconds to the next attempt."""
        try:
            self.refresh(discovers=discovers)
        except DependencyError as error:
            self._failure = f"TTL watches: {error.message}"
            _log.warning(self._failure)
            return min(_RETRY_S, self._interval_s)
        except Exception as error:  # noqa: BLE001 - the thread must survive
            self._failure = f"TTL watches: {type(error).__name__}"
            _log.exception("unexpected error in the TTL watches, trying again")
            return self._interval_s
        self._failure = ""
        return min(_GRANTS_S, self._interval_s)


class _Holds:
    """Returns whether writes are allowed: with the lease, until the pool stops."""

    def __init__(
        self, dependencies: CleanupDependencies, stopping: threading.Event
    ) -> None:
        self._dependencies = dependencies
        self._stopping = stopping

    def __call__(self) -> bool:
        return not self._stopping.is_set() and self._dependencies.holds_lease()
