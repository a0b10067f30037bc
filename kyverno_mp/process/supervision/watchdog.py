"""Kill a process that sends no heartbeat, so that the supervisor restarts it.

Room: process. Takes: the runtime folder. Gives: Watchdog, checked between signals.
Next: process/serve.py calls it on each tick of the supervisor. May touch: processes, by
SIGKILL.
Source: docs/architecture.md 1 (nothing is lost silently), 2.

The supervisor notices a dead process at once. A leader that hangs or was stopped would
leave this pod with outdated policies, which its workers would continue to evaluate. A
coordinator that hangs would stop the work of its pool.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.leader.loop import PAGES
from kyverno_mp.process.supervision.readiness import LEADER
from kyverno_mp.process.supervision.status import read_supervisor_status
from kyverno_mp.telemetry.collect import views
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
_CHECK_NS: Final = 5_000_000_000


@dataclass(slots=True)
class Watchdog:
    """Kills a process that is silent at two consecutive checks.

    Two, because after a suspension of the whole pod, its processes need time for a
    heartbeat. ``names``: the processes with heartbeats that no other process monitors.
    """

    runtime_dir: Path
    silence_s_max: float
    names: Collection[str] = (LEADER,)
    kill: Callable[[int, int], None] = os.kill
    now_ns: Callable[[], int] = time.monotonic_ns
    _checked_ns: int = 0
    _suspects: frozenset[int] = frozenset()

    def check(self) -> None:
        """Check the processes if a check is due."""
        now_ns = self.now_ns()
        if now_ns - self._checked_ns < _CHECK_NS:
            return
        self._checked_ns = now_ns
        silent = self._silent(now_ns)
        for pid in silent.keys() & self._suspects:
            _log.error(
                "no heartbeat from the %s, killing it",
                silent[pid],
                extra=fields(pid=pid, silence_s=self.silence_s_max),
            )
            self.kill(pid, signal.SIGKILL)
        # Killed processes restart with new ids.
        self._suspects = frozenset(silent.keys() - self._suspects)

    def _silent(self, now_ns: int) -> dict[int, str]:
        """Return the names of the silent processes, by process id."""
        supervisor = read_supervisor_status(self.runtime_dir)
        watched = {
            process.pid: process.name
            for process in (supervisor.processes if supervisor else ())
            if process.name in self.names
        }
        cutoff_ns = now_ns - self.silence_s_max * 1e9
        return {
            page.pid: watched[page.pid]
            for page in views(self.runtime_dir / PAGES)
            if page.pid in watched and 0 < page.gauge("heartbeat_ns") < cutoff_ns
        }
