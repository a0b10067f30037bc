"""The table of roles defines what the supervisor and the metrics use."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.process.roles import table as roles
from kyverno_mp.process.roles.table import QUEUES, ROLES, Entry, pools_of, roles_of
from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.process.startup.start import Start
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.page import GAUGES


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        yield found


def start_of(settings: Settings, listener: socket.socket) -> Start:
    return Start(
        settings=settings,
        runtime_dir=Path("/nowhere"),
        files=Files(Path("/nowhere/cert"), Path("/nowhere/key")),
        reviews=listener,
        probes=listener,
    )


@pytest.mark.parametrize("standalone", [True, False])
def test_supervisor_actions_for_each_role(
    listener: socket.socket,
    *,
    standalone: bool,
) -> None:
    """Webhook workers end first and drain. In a cluster, the leader deregisters."""
    found = roles_of(start_of(Settings(standalone=standalone), listener))
    flags = {one.name: (one.drains, one.reloads, one.deregisters) for one in found}
    assert flags == {
        "leader": (False, True, not standalone),
        "webhook": (True, False, False),
        "health": (False, False, False),
    }


def test_role_runs_if_enabled(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Start] = []
    pool = Entry(
        name="pool",
        run=ran.append,
        is_enabled=lambda settings: settings.webhook_workers > 1,
    )
    monkeypatch.setattr(roles, "ROLES", (pool,))
    start = start_of(Settings(webhook_workers=1), listener)
    assert roles_of(start) == ()
    start = start_of(Settings(webhook_workers=2), listener)
    (role,) = roles_of(start)
    role.run()
    assert ran == [start]


def names_of(listener: socket.socket, settings: Settings) -> list[str]:
    return [one.name for one in roles_of(start_of(settings, listener))]


def test_pod_runs_the_enabled_roles(listener: socket.socket) -> None:
    webhook = Settings(webhook_workers=2)
    assert names_of(listener, webhook) == ["leader", "webhook", "health"]
    both = Settings(webhook_workers=2, cleanup_workers=1)
    assert names_of(listener, both) == ["leader", "webhook", "cleanup", "health"]
    alone = Settings(webhook_workers=0, cleanup_workers=1)
    assert names_of(listener, alone) == ["leader", "cleanup", "health"]
    background = Settings(webhook_workers=0, background_workers=4)
    assert names_of(listener, background) == ["leader", "background", "health"]


def test_pools_with_an_account_run() -> None:
    assert pools_of(Settings()) == ()
    assert pools_of(Settings(cleanup_workers=1)) == ("cleanup",)
    both = Settings(cleanup_workers=1, background_workers=4)
    assert pools_of(both) == ("cleanup", "background")
    accounts = {one.name: one.account for one in ROLES if one.account}
    assert accounts == {
        "cleanup": "kyverno-cleanup-controller",
        "background": "kyverno-background-controller",
        "reports": "kyverno-reports-controller",
    }


def test_every_queue_is_in_the_metric_pages() -> None:
    assert {one.name for one in ROLES} == QUEUES.keys()
    for queues in QUEUES.values():
        for queue in queues:
            assert {f"{queue}_queue_depth", f"{queue}_queue_dropped"} <= set(GAUGES)
