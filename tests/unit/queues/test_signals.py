"""A signal is received exactly once, whatever stops and continues the process."""

import ast
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import kyverno_mp
from kyverno_mp.queues import signals
from tests.waiting import HANG_S, pause, wait_for

PROGRAM = """
import signal, sys
from kyverno_mp.queues.signals import await_signal

orders = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGURG}
signal.pthread_sigmask(signal.SIG_BLOCK, orders)
print("ready", flush=True)
number = 0
while number != signal.SIGTERM:
    number = await_signal(orders, float(sys.argv[1]))
    if number:
        print(signal.Signals(number).name, flush=True)
"""
ROUNDS = 5
ORDERS = list(
    itertools.permutations(
        (signal.SIGSTOP, signal.SIGCONT, signal.SIGHUP, signal.SIGURG)
    )
)


class Process:
    """The program above, and what it prints."""

    def __init__(self, wait_s: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, wait_s], stdout=subprocess.PIPE
        )
        assert self.popen.stdout is not None
        self._output = self.popen.stdout.fileno()
        os.set_blocking(self._output, False)
        self._printed = ""
        self.await_lines("ready")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; return when a stop or its end is complete."""
        self.popen.send_signal(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            stops = number == signal.SIGSTOP
            wait_for(lambda: (self._state() == psutil.STATUS_STOPPED) == stops)
            pause()  # a short wait ends

    def _state(self) -> str:
        return psutil.Process(self.popen.pid).status()

    def await_lines(self, *lines: str) -> None:
        """Return when the program has printed the lines, in any order."""

        def is_complete() -> bool:
            try:
                self._printed += os.read(self._output, 65536).decode()
            except BlockingIOError:
                return False
            return self._printed.count("\n") >= len(lines)

        wait_for(is_complete)
        assert sorted(self._printed.splitlines()) == sorted(lines)
        self._printed = ""


@pytest.mark.parametrize("wait_s", ["0.001", "inf"])
def test_each_signal_is_received_once(wait_s: str) -> None:
    """A short wait ends while the process is stopped, one without an end does not."""
    process = Process(wait_s)
    try:
        for order in ORDERS * ROUNDS:
            for number in order:
                process.send(number)
            process.send(signal.SIGCONT)
            process.await_lines("SIGHUP", "SIGURG")
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            process.popen.send_signal(number)
        process.await_lines("SIGTERM")
        assert process.popen.wait(HANG_S) == 0
    finally:
        process.popen.kill()
        process.popen.communicate()


def test_signal_that_is_pending_needs_no_time() -> None:
    """Nothing is lost if a wait begins after its time, as on a busy machine."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    try:
        assert signals.await_signal({signal.SIGURG}, 0) == 0
        signal.pthread_kill(threading.get_ident(), signal.SIGURG)
        assert signals.await_signal({signal.SIGHUP}, 0) == 0
        assert signals.await_signal({signal.SIGURG, signal.SIGHUP}, -1) == signal.SIGURG
        assert signals.await_signal({signal.SIGURG}, 0) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_other_modules_have_no_wait_of_their_own() -> None:
    waits = {"sigtimedwait", "sigwait", "sigwaitinfo", "pause", "set_wakeup_fd"}
    assert [
        f"{path}:{node.lineno}"
        for path in Path(kyverno_mp.__file__).parent.rglob("*.py")
        if path != Path(signals.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "signal"
        and node.attr in waits
    ] == []
