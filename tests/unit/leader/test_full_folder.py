"""A runtime folder without room changes nothing that is in force.

A failure means: the leader ends, or publishes part of a set; a policy that is not in
force says that it is; or what tenants store holds up an administrator's policy.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kyverno_mp.leader import loop
from kyverno_mp.leader.loop import PAGES, SNAPSHOT, Leader
from kyverno_mp.leader.status import PolicyStatus, Status, StatusReader
from kyverno_mp.pool.health import PoolHealth, read_pool_health, write_pool_health
from kyverno_mp.process.supervision.readiness import without_room
from kyverno_mp.process.supervision.status import (
    SupervisorStatus,
    read_supervisor_status,
    write_supervisor_status,
)
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.room import FolderRoom
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder

KIB = 1024
CODE = "leader.unpublished"


class Disk:
    """A file system of a size, whose free space a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 128 * KIB * KIB
        self._write = os.write
        monkeypatch.setattr(os, "statvfs", self._facts)
        monkeypatch.setattr(os, "write", self._writes)

    def _facts(self, _where: object) -> Any:
        return SimpleNamespace(f_frsize=1, f_blocks=128 * KIB * KIB, f_bavail=self.free)

    def _writes(self, descriptor: int, data: Any) -> int:
        if len(data) > self.free:
            raise OSError(28, "No space left on device")
        return self._write(descriptor, data)

    def fill(self) -> None:
        self.free = 0

    def empty(self) -> None:
        self.free = 64 * KIB * KIB

    def leave(self, size: int) -> None:
        """Leave room for segments of this size."""
        self.free = 4 * KIB * KIB + size


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one step compile everything, however slow the machine is."""
    monkeypatch.setattr("kyverno_mp.leader.loop.COMPILE_SLICE_S", float("inf"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def policy(name: str, namespace: str = "", message: str = "m") -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "rules": [
                {
                    "name": "r",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "validate": {"message": message, "deny": {}},
                }
            ]
        },
    }


def _full(path: Path, data: bytes) -> int:
    raise OSError(28, "No space left on device")


class Rig:
    """A leader of a folder of policies; ``pause`` lets it try again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policies = folder / "policies"
        for name in (self.policies, folder / SNAPSHOT, folder / PAGES):
            name.mkdir(mode=0o700, exist_ok=True)
        settings = Settings(standalone=True, policies_dir=str(self.policies))
        page = Page.claim(folder / PAGES, "leader")
        self.leader = Leader(
            settings, folder, Publisher(folder / SNAPSHOT), Recorder(page, 100)
        )

    def store(self, **documents: dict[str, Any]) -> None:
        for name, document in documents.items():
            path = self.policies / f"{name}.json"
            path.write_text(json.dumps(document))
        self.leader.step(force=True)

    def names(self) -> list[str]:
        """Return the policies that a worker gets."""
        path = self.folder / SNAPSHOT / segment_file(POLICIES)
        segment = PolicySegment(Segment.attach(path, POLICIES))
        return [segment.policy_head(at).name for at in range(segment.policy_count)]

    def status(self) -> Status:
        return StatusReader(self.folder).read()

    def policy(self, name: str) -> PolicyStatus:
        (found,) = [one for one in self.status().policies if one.name == name]
        return found


@pytest.fixture
def rig(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(loop, "PUBLISH_RETRY_S", 0.0)
    return Rig(tmp_path)


def test_last_snapshot_stays_in_force(rig: Rig, disk: Disk) -> None:
    rig.store(a=policy("a"))
    generation = rig.leader.generation
    disk.leave(0)
    rig.store(a=policy("a", message="new"), b=policy("b"))
    assert rig.names() == ["a"]
    assert rig.leader.generation == generation
    assert POLICIES in rig.leader.unpublished
    changed, new = rig.policy("a"), rig.policy("b")
    assert (changed.ready, changed.code, new.ready, new.code) == (
        *(False, CODE),
        *(False, CODE),
    )
    assert "not in force" in new.message
    assert "stays in force" in changed.message
    assert changed.in_force
    assert not new.in_force
    assert any("policies is not published" in one for one in rig.status().unread)
    disk.empty()
    rig.leader.step()
    assert rig.names() == ["a", "b"]
    assert rig.leader.unpublished == {}
    assert [one.ready for one in rig.status().policies] == [True, True]
    assert rig.status().unread == ()


def test_tenants_hold_up_no_administrator(rig: Rig, disk: Disk) -> None:
    """Their last versions stay, and the cluster policy comes into force."""
    rig.store(a=policy("a"), t=policy("t", "team"))
    disk.leave(256 * KIB)
    rig.store(
        b=policy("b"),
        t=policy("t", "team", message="x" * 900 * KIB),
        u=policy("u", "team"),
    )
    assert rig.names() == ["a", "b", "t"]
    ready = {one.name: one.ready for one in rig.status().policies}
    assert ready == {"a": True, "b": True, "t": False, "u": False}
    assert rig.policy("t").code == CODE
    rig.store(t=policy("t", "team"))
    assert rig.names() == ["a", "b", "t", "u"]
    assert all(one.ready for one in rig.status().policies)


def test_restarted_leader_keeps_what_the_last_one_published(
    rig: Rig, disk: Disk
) -> None:
    """Its status stays, too, so the pod stays ready."""
    rig.store(a=policy("a"))
    before = rig.status()
    disk.fill()
    second = Rig(rig.folder)
    second.store(b=policy("b"))
    second.leader.step()
    assert second.names() == ["a"]
    assert second.leader.generation == 0
    assert rig.status() == before
    disk.empty()
    second.leader.step()
    assert second.names() == ["a", "b"]
    assert second.leader.generation > before.generation


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_room_may_come_between_two_segments(
    rig: Rig,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    is_restarted: bool,  # noqa: FBT001
) -> None:
    """However few segments of one round find room, the status says so at the end."""
    rig.store(a=policy("a"))
    disk.fill()
    used = Rig(rig.folder) if is_restarted else rig
    publish, left = Publisher.publish, [at]

    def make_room(self: Publisher, name: str, build: Any) -> int:
        if left[0] == 0:
            disk.empty()
        left[0] -= 1
        return publish(self, name, build)

    monkeypatch.setattr(Publisher, "publish", make_room)
    used.store(b=policy("b"))
    for _ in range(3):
        used.leader.step()
    disk.empty()
    used.leader.step()
    used.leader.step()
    assert used.names() == ["a", "b"]
    assert used.leader.unpublished == {}
    assert used.status().unread == ()
    assert used.status().problems == ()


def test_status_without_room_is_written_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected policy changes only the status, which nothing else writes again."""
    rig.store(a=policy("a"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", _full)
        names = [f"b{number}" for number in range(60)]
        rig.store(**{name: {**policy(name), "spec": {"rules": 1}} for name in names})
    assert [one.name for one in rig.status().policies] == ["a"]
    rig.leader.step()
    assert not rig.policy("b59").ready


def test_failed_publication_is_not_repeated_at_every_poll(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PUBLISH_RETRY_S", float("inf"))
    rig = Rig(tmp_path)
    disk.fill()
    rig.store(a=policy("a"))
    encoded: list[str] = []
    publish = Publisher.publish

    def count(self: Publisher, name: str, build: Any) -> int:
        encoded.append(name)
        return publish(self, name, build)

    monkeypatch.setattr(Publisher, "publish", count)
    for _ in range(20):
        rig.leader.step()
    assert encoded == []


def test_reports_of_processes_never_end_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record that other processes read keeps its last version."""
    write_supervisor_status(tmp_path, SupervisorStatus(1))
    write_pool_health(tmp_path, PoolHealth("x", holds_lease=True))

    monkeypatch.setattr(Path, "write_bytes", _full)
    # What fits into the blocks of the old record is written there.
    assert write_supervisor_status(tmp_path, SupervisorStatus(2))
    assert read_supervisor_status(tmp_path) == SupervisorStatus(2)
    write_pool_health(tmp_path, PoolHealth("x", reasons=("y" * 100_000,)))
    assert read_pool_health(tmp_path, "x") == PoolHealth("x", holds_lease=True)
    write_pool_health(tmp_path, PoolHealth("x"))
    assert read_pool_health(tmp_path, "x") == PoolHealth("x")
    write_pool_health(tmp_path, PoolHealth("new"))
    assert read_pool_health(tmp_path, "new") is None
    assert [path.name for path in tmp_path.iterdir() if ".new" in path.name] == []


def test_earlier_versions_do_not_fill_the_folder(rig: Rig) -> None:
    """Tenants can store many large policies, each with a rejected newer version."""
    good = policy("a", "team", message="x" * 40_000)
    rig.store(a=good)
    rig.store(a={**good, "spec": {"rules": "invalid"}})
    assert rig.policy("a").in_force
    assert (rig.folder / "status.json").stat().st_size < 20_000


@pytest.mark.parametrize(
    ("size", "free", "is_full"),
    [
        (128 * KIB * KIB, 5 * KIB * KIB, False),
        (128 * KIB * KIB, 3 * KIB * KIB, True),
        (16 * KIB * KIB, 3 * KIB * KIB, False),
        (16 * KIB * KIB, 0, True),
    ],
)
def test_health_measures_the_folder_itself(size: int, free: int, is_full: bool) -> None:  # noqa: FBT001
    assert bool(without_room(FolderRoom(size, free))) is is_full
