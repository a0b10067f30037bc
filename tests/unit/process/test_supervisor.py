"""The order of a shutdown: pods deregister while the webhook still answers."""

import os
import signal
import time
from pathlib import Path

import pytest

from kyverno_mp.leader.control import shutdown
from kyverno_mp.process.supervision.supervisor import Role, Supervisor
from kyverno_mp.settings.settings import Settings
from tests.waiting import wait_for

READY_S = 10.0


def note(folder: Path, text: str) -> None:
    with (folder / "order").open("a") as file:
        file.write(f"{text}\n")


def supervise(folder: Path, delay_s: float, *, marks: bool) -> None:
    """Run a supervisor with a leader and a webhook that record their signals."""

    def wait(*numbers: signal.Signals) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        note(folder, "runs")
        signal.sigwait(numbers)

    def lead() -> None:
        wait(shutdown.SIGNAL)
        time.sleep(0.2)
        note(folder, "leave taken")
        if marks:
            shutdown.mark(folder, "leader")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigwait({signal.SIGTERM})
        note(folder, "leader ends")

    def serve() -> None:
        wait(signal.SIGTERM)
        note(folder, "webhook ends")

    Supervisor(
        Settings(drain_delay_s=delay_s),
        folder,
        (
            Role("leader", lead, deregisters=True),
            Role("webhook", serve, drains=True),
        ),
        before_drain=lambda: note(folder, "accepts no more"),
        on_tick=lambda: False,
    ).run()


def end(folder: Path, delay_s: float, *, marks: bool) -> list[str]:
    """Run the supervisor, stop it, and return the records."""
    child = os.fork()
    if child == 0:
        try:
            supervise(folder, delay_s, marks=marks)
        finally:
            os._exit(0)
    order = folder / "order"
    wait_for(lambda: order.exists() and order.read_text() == "runs\nruns\n")
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0
    return order.read_text().split("\n")[2:-1]


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_deregistration_precedes_the_end_of_accepting(
    tmp_path: Path, delay_s: float
) -> None:
    noted = end(tmp_path, delay_s, marks=True)
    assert noted == ["leave taken", "accepts no more", "webhook ends", "leader ends"]


def test_unresponsive_role_does_not_delay_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "TIMEOUT_S", 1.0)
    noted = end(tmp_path, 0.0, marks=False)
    assert noted == ["leave taken", "accepts no more", "webhook ends", "leader ends"]


def test_each_deregistering_role_is_waited_for(tmp_path: Path) -> None:
    """The mark of one role does not end the wait for another role."""

    def leave_after(name: str, pause_s: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {shutdown.SIGNAL})
        note(tmp_path, "runs")
        signal.sigwait({shutdown.SIGNAL})
        time.sleep(pause_s)
        note(tmp_path, f"{name} leaves")
        shutdown.mark(tmp_path, name)
        signal.sigwait({signal.SIGTERM})

    child = os.fork()
    if child == 0:
        try:
            Supervisor(
                Settings(drain_delay_s=0.0),
                tmp_path,
                (
                    Role("leader", lambda: leave_after("leader", 0), deregisters=True),
                    Role("pool", lambda: leave_after("pool", 0.8), deregisters=True),
                ),
                before_drain=lambda: note(tmp_path, "accepts no more"),
                on_tick=lambda: False,
            ).run()
        finally:
            os._exit(0)
    order = tmp_path / "order"
    wait_for(lambda: order.exists() and order.read_text() == "runs\nruns\n")
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0
    assert order.read_text().split()[2:] == [
        *("leader", "leaves", "pool", "leaves"),
        *("accepts", "no", "more"),
    ]
