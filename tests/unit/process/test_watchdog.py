"""A leader that is stuck is replaced; one that works or just resumed is not."""

import os
from pathlib import Path

import pytest

from kyverno_mp.process.supervision.status import (
    ProcessState,
    SupervisorStatus,
    write_supervisor_status,
)
from kyverno_mp.process.supervision.watchdog import Watchdog
from kyverno_mp.telemetry.page import Page

S = 1_000_000_000


@pytest.fixture
def page(tmp_path: Path) -> Page:
    (tmp_path / "pages").mkdir()
    write_supervisor_status(
        tmp_path,
        SupervisorStatus(pid=1, processes=(ProcessState("leader", os.getpid()),)),
    )
    return Page.claim(tmp_path / "pages", "leader")


def test_silent_leader_is_killed_at_the_second_check(
    page: Page, tmp_path: Path
) -> None:
    ended: list[int] = []
    now = [1000 * S]
    watchdog = Watchdog(
        tmp_path,
        120,
        kill=lambda pid, _number: ended.append(pid),
        now_ns=lambda: now[0],
    )
    page.set_gauge("heartbeat_ns", 900 * S)
    watchdog.check()
    now[0] = 1021 * S
    watchdog.check()
    assert ended == []
    page.set_gauge("heartbeat_ns", 1022 * S)
    for now[0] in (1027 * S, 1140 * S):
        watchdog.check()
    assert ended == []
    for now[0] in (1145 * S, 1147 * S):
        watchdog.check()
    assert ended == [], (
        "the first check that finds it silent, and one that came too early"
    )
    now[0] = 1151 * S
    watchdog.check()
    assert ended == [os.getpid()]


def test_starting_leader_is_not_killed(page: Page, tmp_path: Path) -> None:
    ended: list[int] = []
    now = [1000 * S]
    watchdog = Watchdog(
        tmp_path,
        120,
        kill=lambda pid, _number: ended.append(pid),
        now_ns=lambda: now[0],
    )
    page.set_gauge("heartbeat_ns", 0)
    for now[0] in (1000 * S, 2000 * S, 3000 * S):
        watchdog.check()
    assert ended == []
