"""Start the pod's processes, restart those that die, and drain them on SIGTERM.

Room: process. Takes: Roles from process/roles/table.py. Gives: an exit code;
supervisor_status.json.
Next: the operating system. May touch: fork, signals, waitpid, the monotonic clock.

Signals are blocked and fetched with sigtimedwait: no handler ever runs between two
statements, and process 1 receives blocked signals that Linux would otherwise drop.
Children are forked, not executed: the supervisor imports everything once and freezes
it, so they share those pages and a restart takes milliseconds. It runs no threads, for
a safe fork.
"""

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kyverno_mp.leader.control import shutdown
from kyverno_mp.limits import ROLE_END_S_MAX
from kyverno_mp.process.startup.listen import refuse_waiting
from kyverno_mp.process.supervision.backoff import Backoff
from kyverno_mp.process.supervision.parent_death import (
    adopt_orphans,
    children_of,
    die_with_parent,
)
from kyverno_mp.process.supervision.status import (
    ProcessState,
    SupervisorStatus,
    write_supervisor_status,
)
from kyverno_mp.queues.signals import await_signal
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.log import fields, set_up

_log = logging.getLogger(__name__)
_WATCHED: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
)
_TICK_S: Final = 0.25
"""While the pod starts, a process waits for its restart or a crash loop is refused."""
_QUIET_S: Final = 2.5
"""Half of the period of the watchdog; signals end the wait."""
_DRAIN_MARGIN_S: Final = 3.0
"""The arbiter stops its workers itself at the drain timeout and needs time for that."""
_INTERNAL_ERROR_EXIT: Final = 70


@dataclass(frozen=True, slots=True)
class Role:
    """A process to keep alive. ``run`` runs in the child and returns its exit code.

    ``drains``: the role is stopped first and can use the drain timeout. ``reloads``:
    the supervisor forwards SIGHUP to it. ``deregisters``: the supervisor has it
    deregister before any role stops (leader/control/shutdown.py). ``listener``: the
    socket from which the role accepts connections; the supervisor refuses them while
    the role is down in a crash loop.
    """

    name: str
    run: Callable[[], None]
    drains: bool = False
    reloads: bool = False
    deregisters: bool = False
    listener: socket.socket | None = None


@dataclass(slots=True)
class _Child:
    role: Role
    backoff: Backoff
    pid: int = 0
    start_at: float = 0.0
    restarts: int = 0


@dataclass(slots=True)
class Supervisor:
    """The state of the supervising process."""

    settings: Settings
    runtime_dir: Path
    roles: Sequence[Role]
    before_drain: Callable[[], None]
    """Called once when the pod must stop accepting; closes our listening socket."""
    on_tick: Callable[[], bool]
    """Called between signals; returns whether to call it again within a moment."""
    _children: list[_Child] = field(default_factory=list)
    _draining: bool = False
    _refused: int = 0
    _status: SupervisorStatus | None = None
    _is_quiet: bool = False

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT, then drain; return the exit code 0."""
        # Children inherit the mask: a starting child handles a signal later.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED | {shutdown.SIGNAL})
        adopt_orphans()
        gc.collect()
        gc.freeze()
        self._children = [_Child(role, self._backoff()) for role in self.roles]
        while True:
            self._start_due()
            self._publish()
            number = self._wait(_QUIET_S if self._is_quiet else _TICK_S)
            if number in (signal.SIGTERM, signal.SIGINT):
                break
            if number == signal.SIGHUP:
                self._reload()
            self._reap()
            self._refuse()
            self._is_quiet = not self.on_tick() and self._is_settled()
        self._drain()
        return 0

    def _backoff(self) -> Backoff:
        settings = self.settings
        return Backoff(
            least_s=settings.restart_delay_s_min,
            most_s=settings.restart_delay_s_max,
            window_s=settings.crash_loop_window_s,
            loop_deaths=settings.crash_loop_deaths,
        )

    def _wait(self, most_s: float) -> int:
        """Return the next signal, 0 if a start is due or the time has passed."""
        now = time.monotonic()
        due = [c.start_at - now for c in self._children if not c.pid]
        return await_signal(_WATCHED, max(0.0, min([most_s, *due])))

    def _is_settled(self) -> bool:
        """Return whether all processes run, none in a crash loop, as published."""
        now = time.monotonic()
        return self._status == self._current(now) and all(
            child.pid and not child.backoff.looping(now) for child in self._children
        )

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if not child.pid and child.start_at <= now:
                child.pid = _fork(child.role, self.settings)
                _log.info(
                    "started", extra=fields(process=child.role.name, child=child.pid)
                )

    def _reap(self) -> None:
        """Reap every dead child, including adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = next((c for c in self._children if c.pid == pid), None)
            if child is not None:
                self._note_death(child, os.waitstatus_to_exitcode(status))

    def _note_death(self, child: _Child, code: int) -> None:
        child.pid = 0
        if self._draining:
            return
        now = time.monotonic()
        pause = child.backoff.died(now)
        child.start_at = now + pause
        child.restarts += 1
        _log.error(
            "process died",
            extra=fields(
                process=child.role.name,
                exit=code,
                restart_in_s=round(pause, 3),
                crash_loop=child.backoff.looping(now),
            ),
        )

    def _refuse(self) -> None:
        """Refuse connections to roles that are down in a crash loop.

        Otherwise they would wait in the socket's queue: the API server would wait for
        its timeout before failurePolicy decides.
        """
        now = time.monotonic()
        for child in self._children:
            listener = child.role.listener
            if listener and not child.pid and child.backoff.looping(now):
                self._refused += refuse_waiting(listener, self.settings.webhook_backlog)

    def _reload(self) -> None:
        _log.info("reloading")
        for child in self._children:
            if child.pid and child.role.reloads:
                os.kill(child.pid, signal.SIGHUP)

    def _current(self, now: float) -> SupervisorStatus:
        return SupervisorStatus(
            pid=os.getpid(),
            draining=self._draining,
            processes=tuple(
                ProcessState(c.role.name, c.pid, c.restarts, c.backoff.looping(now))
                for c in self._children
            ),
            refused=self._refused,
        )

    def _publish(self) -> None:
        supervisor = self._current(time.monotonic())
        # If the folder is full, the next turn tries again.
        if supervisor != self._status and write_supervisor_status(
            self.runtime_dir, supervisor
        ):
            self._status = supervisor

    def _drain(self) -> None:
        """Deregister, stop the draining roles, then the others, then kill the rest."""
        settings = self.settings
        self._draining = True
        self._publish()
        _log.info("draining", extra=fields(timeout_s=settings.drain_timeout_s))
        self._deregister(settings.drain_delay_s)
        self.before_drain()
        first = [c for c in self._children if c.role.drains]
        self._end(first, settings.drain_timeout_s + _DRAIN_MARGIN_S)
        self._end([c for c in self._children if not c.role.drains], ROLE_END_S_MAX)
        for pid in children_of(os.getpid()):
            _kill(pid, signal.SIGKILL)
        self._reap()
        _log.info("stopped")

    def _deregister(self, delay_s: float) -> None:
        """Wait for the drain delay, and longer while a role still deregisters.

        A second SIGTERM or SIGINT ends the wait.
        """
        asked = [c for c in self._children if c.role.deregisters and c.pid]
        for child in asked:
            _kill(child.pid, shutdown.SIGNAL)
        started = time.monotonic()
        while (passed := time.monotonic() - started) < max(delay_s, shutdown.TIMEOUT_S):
            busy = any(
                child.pid and not shutdown.is_marked(self.runtime_dir, child.role.name)
                for child in asked
            )
            if passed >= delay_s and not busy:
                return
            number = await_signal(_WATCHED, _TICK_S)
            self._reap()
            if number in (signal.SIGTERM, signal.SIGINT):
                return

    def _end(self, children: Sequence[_Child], within_s: float) -> None:
        for child in children:
            if child.pid:
                _kill(child.pid, signal.SIGTERM)
        self._await_end(children, within_s)
        for child in children:
            if child.pid:
                _log.error("process killed", extra=fields(process=child.role.name))
                _kill(child.pid, signal.SIGKILL)
        self._await_end(children, 1.0)

    def _await_end(self, children: Sequence[_Child], within_s: float) -> None:
        """Wait until all children are gone.

        A second SIGTERM or SIGINT ends the wait.
        """
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            self._reap()
            if not any(c.pid for c in children):
                return
            number = await_signal(_WATCHED, min(left, _TICK_S))
            if number in (signal.SIGTERM, signal.SIGINT):
                return


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _fork(role: Role, settings: Settings) -> int:
    """Start ``role`` in a child and return its id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = _INTERNAL_ERROR_EXIT
    try:
        set_up(role.name, settings.log_level, settings.log_format)
        die_with_parent(parent, signal.SIGTERM)
        for number in _WATCHED:
            signal.signal(number, signal.SIG_DFL)
        # A terminal sends Ctrl-C to every process. Only the supervisor stops them, in
        # order, so that accepted reviews are answered.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        unblocked = _WATCHED if role.deregisters else _WATCHED | {shutdown.SIGNAL}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
        role.run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the child must never return to the caller
        _log.exception("process failed", extra=fields(process=role.name))
    finally:
        os._exit(code)
