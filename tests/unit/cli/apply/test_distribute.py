"""A Dask cluster gives what one run gives, even if a worker is killed.

A failure means: an audit on a cluster loses the objects of a worker that died.
"""

import importlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.shell.exit_codes import STATE
from tests.unit.cli.apply.test_shards import MORE_POLICIES
from tests.unit.cli.conftest import LATEST_POLICY, Command
from tests.waiting import wait_for

distributed: Any = importlib.import_module("distributed")  # it has few types
fleet: Any = importlib.import_module("kyverno_mp.cli.apply.fleet")
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


def _far(command: Command, cluster: Any, *flags: str) -> Any:
    return command(
        *("apply", "policy.yaml", "-r", "dump.jsonl", *flags),
        *("--distribute", _address(cluster)),
    )


def test_a_scheduler_without_workers_ends_the_run(
    command: Command, folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_WORKERS_S", 1)
    cluster.scale(0)
    wait_for(lambda: not cluster.scheduler.workers)
    done = _far(command, cluster)
    assert done.code == STATE
    assert "no scheduler with workers answers" in done.err


def test_the_last_worker_ends_the_run_when_it_goes(
    command: Command, folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask would wait for another one for ever."""
    submit = distributed.Client.submit

    def retire(client: Any, *arguments: Any, **options: Any) -> Any:
        if arguments[0] is fleet.evaluate_part:
            cluster.scale(0)
            wait_for(lambda: not cluster.scheduler.workers)
            monkeypatch.setattr(fleet, "_WORKERS_S", 1)
        return submit(client, *arguments, **options)

    monkeypatch.setattr(distributed.Client, "submit", retire)
    done = _far(command, cluster)
    assert done.code == STATE
    assert "no worker any more" in done.err


def test_a_scheduler_that_ends_ends_the_run(
    command: Command, folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_completed = distributed.as_completed

    def close(tasks: Any) -> Any:
        running = as_completed(tasks)
        cluster.close()
        return running

    monkeypatch.setattr(distributed, "as_completed", close)
    done = _far(command, cluster)
    assert done.code == STATE
    assert "scheduler" in done.err


def test_passwords_do_not_travel(
    command: Command, folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler and the workers get what is compiled, not how it was read."""
    sent: list[bytes] = []
    submit = distributed.Client.submit

    def record(client: Any, *arguments: Any, **options: Any) -> Any:
        sent.extend(each for each in arguments if isinstance(each, bytes))
        return submit(client, *arguments, **options)

    monkeypatch.setattr(distributed.Client, "submit", record)
    done = _far(command, cluster, "--username", "ann", "--password", "s3cret-word")
    assert done.code == 1  # some Pods violate the policy
    assert sent
    assert not any(b"s3cret-word" in each or b"ann" in each for each in sent)
