"""Store many large policies of some namespaces, and measure the effect on others.

Used by perf/neighbours.py. The runtime folder has the size of ``deploy/`` if this
process may mount one.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.neighbour import Neighbour
from tests.faults.service import Service, pod, require_label, write_whole
from tests.waiting import wait_for

_OPTIONS = "size=128m,mode=0700"
_TEXTS = 16
_TEXT_BYTES = 63 * 1024


class Seen(NamedTuple):
    """The measurements of one run."""

    quiet_s_max: float
    """The longest duration of a neighbour's review before the attack."""
    neighbour_s_max: float
    """The longest one while the policies are stored and compiled."""
    neighbour_wrong: int
    """Answers that allow what a cluster policy forbids."""
    is_in_force: bool
    """Whether a new policy of an administrator and a changed one were enforced."""
    tenants_ready: int
    """Policies of the attackers that are in force."""
    leader_pss_mib: float
    leader_restarts: int


def measured(folder: Path, namespaces: int, policies: int) -> Seen:
    """Store ``policies`` policies of 1 MB in each namespace."""
    (folder / "policies").mkdir()
    write_whole(folder / "policies" / "a.yaml", require_label("a", "app"))
    with _room(folder), closing(Service(folder, workers=1)) as service:
        service.wait(service.ready)
        with Neighbour(service) as quiet:
            wait_for(lambda: len(quiet.taken_s) >= 100)
        with Neighbour(service) as neighbour:
            for team in range(namespaces):
                for number in range(policies):
                    name = f"t{team}-{number}"
                    text = _large(name, f"team{team}")
                    write_whole(folder / "policies" / f"{name}.json", text)
            _await_all(service, namespaces * policies + 1)
            write_whole(folder / "policies" / "b.yaml", require_label("b", "team"))
            write_whole(folder / "policies" / "a.yaml", require_label("a", "app2"))
            wait_for(lambda: not service.review(pod(app="x", app2="x"))["allowed"])
            wait_for(lambda: service.review(pod(team="x", app2="x"))["allowed"])
        (leader,) = service.pids("leader")
        return Seen(
            max(quiet.taken_s),
            max(neighbour.taken_s),
            len(neighbour.wrong),
            is_in_force=not service.review(pod(app="x"))["allowed"],
            tenants_ready=_stored(service)[1] - 2,
            leader_pss_mib=_pss_mib(leader),
            leader_restarts=_restarts(service),
        )


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    room = folder / "run"
    room.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", _OPTIONS, "tmpfs", str(room)]
    is_mounted = os.geteuid() == 0
    is_mounted = is_mounted and not subprocess.run(command, check=False).returncode
    try:
        yield
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(room)], check=True)


def _large(name: str, namespace: str) -> str:
    """Return a policy of 1 MB, each of whose texts is as long as a review allows."""
    rules = [
        {
            "name": f"r{number}",
            "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
            "validate": {"message": "m" * _TEXT_BYTES, "deny": {}},
        }
        for number in range(_TEXTS)
    ]
    metadata = {"name": name, "namespace": namespace}
    head = {"apiVersion": "kyverno.io/v1", "kind": "Policy", "metadata": metadata}
    return json.dumps({**head, "spec": {"rules": rules}})


def _await_all(service: Service, total: int) -> None:
    """Wait until the leader has read all policies, as long as it goes on."""
    count = 0
    while count < total:
        count = wait_for(partial(_more_than, service, count))


def _more_than(service: Service, count: int) -> int:
    found, _ = _stored(service)
    return found if found > count else 0


def _stored(service: Service) -> tuple[int, int]:
    """Return how many policies the leader has read, and how many are in force."""
    _, metrics = service.get("/metrics")
    counts = dict(re.findall(r'\nkyverno_mp_policies\{ready="(\w+)"\} (\d+)', metrics))
    ready, unready = int(counts.get("true", 0)), int(counts.get("false", 0))
    return ready + unready, ready


def _pss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"Pss:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1024


def _restarts(service: Service) -> int:
    processes = json.loads(service.get("/healthz")[1])["processes"]
    return sum(one["restarts"] for one in processes if one["name"] == "leader")
