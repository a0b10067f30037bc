"""Kill a leader that runs but does nothing, so that the supervisor restarts it.

Room: process. Takes: the runtime folder. Gives: Watchdog, checked between signals.
Next: serve.py calls it on the supervisor's tick. May touch: the leader, by SIGKILL.
Source: docs/architecture.md 1 (nothing is lost silently), 2.

The supervisor notices a dead leader at once. A leader that hangs or was stopped would
leave this pod with outdated policies, and its workers would go on evaluating them.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.leader.loop import PAGES
from kyverno_mp.process.readiness import LEADER
from kyverno_mp.process.supervisor_status import read_supervisor_status
from kyverno_mp.telemetry.collect import views
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
_LOOK_NS: Final = 5_000_000_000


@dataclass(slots=True)
class Watchdog:
    """Counts checks that find the leader silent; kills it at the second in a row.

    Two, because after a whole pod was stopped, the leader needs time to wake up.
    """

    runtime_dir: Path
    silence_s_max: float
    kill: Callable[[int, int], None] = os.kill
    now_ns: Callable[[], int] = time.monotonic_ns
    _looked_ns: int = 0
    _suspect: int = 0

    def look(self) -> None:
        """Check when due."""
        now_ns = self.now_ns()
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        silent = self._silent_leader(now_ns)
        if silent and silent == self._suspect:
            _log.error(
                "the leader sends no heartbeat, killing it", extra=fields(child=silent)
            )
            self.kill(silent, signal.SIGKILL)
            silent = 0
        self._suspect = silent

    def _silent_leader(self, now_ns: int) -> int:
        supervisor = read_supervisor_status(self.runtime_dir)
        pids = (
            {one.pid for one in supervisor.processes if one.name == LEADER}
            if supervisor
            else ()
        )
        for page in views(self.runtime_dir / PAGES):
            beat_ns = page.fact("heartbeat_ns")
            if page.pid in pids and 0 < beat_ns < now_ns - self.silence_s_max * 1e9:
                return page.pid
        return 0
