"""A runtime folder that is really full takes no process with it.

A failure means: whoever fills the folder ends the leader or the supervisor, lifts the
policies in force, or makes the pod unready.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.faults.service import Service, pod, require_label, write_whole
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
SIZE = "size=48m,mode=0700"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A small file system in memory at the place of the runtime folder."""
    room = tmp_path / "run"
    room.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", SIZE, "tmpfs", str(room)]
    if os.geteuid() or subprocess.run(command, check=False).returncode:
        pytest.skip("the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(room)], check=True)


def fill(room: Path) -> Path:
    """Take all free space; return the file that has it."""
    filler = room / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(room).f_bavail == 0
    return filler


def is_replaced(service: Service, name: str, victim: int) -> bool:
    return victim not in service.pids(name)


def test_full_folder_changes_nothing_in_force(folder: Path) -> None:
    (folder / "policies").mkdir()
    write_whole(folder / "policies" / "a.yaml", require_label("a", "app"))
    with closing(Service(folder)) as service:
        service.wait(service.ready)
        filler = fill(service.runtime_dir)
        write_whole(folder / "policies" / "b.yaml", require_label("b", "team"))

        def reported() -> bool:
            _, metrics = service.get("/metrics")
            return "\nkyverno_mp_segments_unpublished 1" in metrics

        wait_for(reported)
        code, body = service.get("/healthz")
        assert code == 503
        assert any("folder is full" in one for one in json.loads(body)["reasons"])
        for name in ("worker", "webhook", "leader"):
            victim = service.pids(name)[0]
            os.kill(victim, signal.SIGKILL)
            wait_for(partial(is_replaced, service, name, victim))
            wait_for(service.ready)
            assert service.review(pod(team="x"))["allowed"] is False
            assert service.review(pod(app="x"))["allowed"] is True
        assert service.process.poll() is None
        filler.unlink()
        wait_for(lambda: service.review(pod(app="x"))["allowed"] is False)
        assert service.review(pod(app="x", team="x"))["allowed"] is True
        wait_for(lambda: service.get("/healthz")[0] == 200)
        restarts = {
            one["name"]: one["restarts"]
            for one in json.loads(service.get("/healthz")[1])["processes"]
        }
        # Only those that the test has killed were started again.
        assert restarts == {"leader": 1, "webhook": 1, "health": 0}
