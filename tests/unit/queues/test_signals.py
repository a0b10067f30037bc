"""A process that is stopped and continued reports no signal that was never sent."""

import os
import signal
import subprocess
import sys
import time

import pytest

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


def test_signal_is_returned_once(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10)[0] == "SIGHUP\nSIGTERM\n"


def test_stop_and_continue_are_no_signals(
    process: "subprocess.Popen[str]",
) -> None:
    for _ in range(5):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10)[0] == "SIGTERM\n"


def test_signal_received_while_stopped_is_not_lost(
    process: "subprocess.Popen[str]",
) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=10)[0] == "SIGTERM\n"
