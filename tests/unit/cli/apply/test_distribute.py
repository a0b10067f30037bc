"""A Dask cluster gives what one run gives, even if a worker is killed.

A failure means: an audit on a cluster loses the objects of a worker that died.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.apply.test_shards import MORE_POLICIES
from tests.unit.cli.conftest import LATEST_POLICY, Command

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
fleet = pytest.importorskip("kyverno_mp.cli.apply.fleet")
OBJECTS = 1200  # three tasks


@pytest.fixture
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    every_kind = LATEST_POLICY + "---" + MORE_POLICIES
    (tmp_path / "policy.yaml").write_text(every_kind)
    with (tmp_path / "dump.jsonl").open("w") as lines:
        for number in range(OBJECTS):
            image = "nginx:latest" if number % 3 == 0 else "nginx:1"
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{number}", "namespace": "a"},
                "spec": {"containers": [{"name": "c", "image": image}]},
            }
            lines.write(json.dumps(pod) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _address(cluster: Any) -> str:
    return f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"


@pytest.mark.parametrize("flags", ["", "--table"])
def test_results_are_those_of_one_run(
    command: Command, folder: Path, cluster: Any, flags: str
) -> None:
    arguments = ("policy.yaml", "-r", "dump.jsonl", *flags.split())
    one = command("apply", *arguments)
    far = command("apply", *arguments, "--distribute", _address(cluster))
    assert (far.code, far.out) == (one.code, one.out), far.err
    assert f"p{OBJECTS - 3}" in one.out


def _die(*_arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at_the_next_task() -> int:
    # A worker looks the function up by its name for each task.
    fleet.evaluate_part = _die
    return os.getpid()


def test_killed_workers_lose_nothing(
    command: Command, folder: Path, cluster: Any
) -> None:
    """Each worker dies in the middle of its next task, and then a new one starts."""
    one = command("apply", "policy.yaml", "-r", "dump.jsonl")
    with distributed.Client(cluster) as client:
        before = set(client.run(_die_at_the_next_task).values())
    far = command(
        "apply", "policy.yaml", "-r", "dump.jsonl", "--distribute", _address(cluster)
    )
    assert (far.code, far.out) == (one.code, one.out), far.err
    with distributed.Client(cluster) as client:
        assert set(client.run(os.getpid).values()) != before


@pytest.mark.parametrize(
    ("address", "said"),
    [("http://h:1", "expected dask://"), ("dask://", "expected dask://")],
)
def test_other_addresses_are_refused(
    command: Command, folder: Path, address: str, said: str
) -> None:
    done = command("apply", "policy.yaml", "-r", "dump.jsonl", "--distribute", address)
    assert done.code == 1
    assert said in done.err
