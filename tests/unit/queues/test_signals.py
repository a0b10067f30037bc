"""A process that is stopped and continued reports no signal that was never sent."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest

from kyverno_mp.queues.signals import SignalWait
from tests.waiting import HANG_S, wait_for

PROGRAM = """
import signal, sys
from kyverno_mp.queues.signals import SignalWait

orders = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGURG}
signal.pthread_sigmask(signal.SIG_BLOCK, orders)
signals = SignalWait()
print("ready", flush=True)
while True:
    number = signals.wait(orders, 0.05)
    if number:
        print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(0)
"""


@pytest.fixture
def process() -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def state(process: "subprocess.Popen[str]") -> str:
    return psutil.Process(process.pid).status()


def test_signal_is_returned_once(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert process.stdout.readline() == "SIGHUP\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=HANG_S)[0] == "SIGTERM\n"


def test_stop_and_continue_are_no_signals(
    process: "subprocess.Popen[str]",
) -> None:
    for _ in range(5):
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: state(process) == psutil.STATUS_STOPPED)
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: state(process) != psutil.STATUS_STOPPED)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=HANG_S)[0] == "SIGTERM\n"


class _Late:
    """An uninitialised record, which another thread explains somewhat later."""

    si_signo = signal.SIGTERM

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def wait(self, _signals: object, _seconds: float) -> Any:
        threading.Timer(0.05, self._continue).start()
        return self

    def _continue(self) -> None:
        os.kill(os.getpid(), signal.SIGCONT)
        self.is_over.set()


def test_another_thread_receives_the_continuation_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a process on a busy machine would end as after a SIGTERM."""
    before = signal.getsignal(signal.SIGCONT)
    late = _Late()
    signals = SignalWait()
    try:
        monkeypatch.setattr(signal, "sigtimedwait", late.wait)
        assert signals.wait({signal.SIGTERM}, 0) == 0
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert signals.wait({signal.SIGTERM}, 0) == 0, "its shell has ended"
        assert SignalWait(os.getpid()).wait({signal.SIGTERM}, 0) == signal.SIGTERM
        late.si_signo = signal.SIGUSR1
        assert signals.wait({signal.SIGTERM}, 0) == 0, "it was not asked for"
        assert late.is_over.wait(HANG_S)
    finally:
        signal.signal(signal.SIGCONT, before)


def test_signal_received_while_stopped_is_not_lost(
    process: "subprocess.Popen[str]",
) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: state(process) == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=HANG_S)[0] == "SIGTERM\n"
