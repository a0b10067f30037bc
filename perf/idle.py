"""Count API calls, wake-ups and CPU of replicas that have nothing to do.

The manifests of deploy/ run on a real API server, with ``--policies`` policies that are
in force. First one replica, which holds all leases, then ``--replicas``: what is added
are the others. The audit log counts the calls; opening a watch again is one of them.
The kernel counts how often threads wake up, which depends on no other work of the
machine, as the CPU does. Probes come in a kubelet's periods while it measures.

    python perf/idle.py [--seconds 60] [--policies 20] [--replicas 3] [--check]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from tests.e2e.binaries import find_kubectl
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOY,
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    installation,
    until,
)
from tests.e2e.prepared import running_plane

HOLDER_CALLS_MAX: Final = 60
"""A minute, of the replica that holds all leases."""
FOLLOWER_CALLS_MAX: Final = 12
"""A minute, of each other replica."""
HOLDER_WAKES_MAX: Final = 55
"""A second, of all threads of the replica that holds all leases."""
FOLLOWER_WAKES_MAX: Final = 35
"""A second, of each other replica."""
LEASES: Final = (
    "kyverno",
    "kyverno-background-controller",
    "kyverno-cleanup-controller",
    "kyverno-reports-controller",
)
_OURS: Final = f"system:serviceaccount:{NAMESPACE}:"
_WAKES: Final = "\nvoluntary_ctxt_switches:"
_QUIET_CALLS: Final = 10
_QUIET_S: Final = 5.0
Calls = Counter[tuple[str, str, str]]
"""Account, verb and resource -> calls."""


@dataclass(frozen=True)
class Work:
    """CPU in seconds, and how often threads woke up."""

    cpu_s: float = 0.0
    wakes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Return the sum."""
        return Work(self.cpu_s + other.cpu_s, self.wakes + other.wakes)

    def since(self, before: "Work", seconds: float) -> "Work":
        """Return what was added in a second."""
        cpu_s, wakes = self.cpu_s - before.cpu_s, self.wakes - before.wakes
        return Work(cpu_s / seconds, wakes / seconds)


@dataclass(frozen=True)
class Idle:
    """What replicas did in some seconds."""

    calls: Calls
    work: dict[str, Work]
    """A second, by the names of the pod and the role."""
    seconds: float

    def of_pods(self) -> dict[str, Work]:
        """Return the work of each pod."""
        pods: dict[str, Work] = {}
        for name, work in self.work.items():
            pod = name.partition("/")[0]
            pods[pod] = pods.get(pod, Work()) + work
        return pods

    @property
    def a_minute(self) -> float:
        """The calls of all replicas in a minute."""
        return self.calls.total() * 60 / self.seconds


def start(found: Installation, policies: int) -> None:
    """Install one replica; wait until it has the policies and all leases."""
    found.kubectl("apply", "-f", str(DEPLOY / "install.yaml"))
    scale(found, 1)
    for number in range(policies):
        found.enforce(f"idle-{number}", f"label-{number}", "Secret")
    until(lambda: all(found.holder(one) for one in LEASES), "all leases are held")


def scale(found: Installation, replicas: int) -> None:
    """Wait until this number of replicas run, and no other."""
    found.kubectl(
        *("-n", NAMESPACE, "scale", f"deployment/{DEPLOYMENT}"),
        f"--replicas={replicas}",
    )
    found.await_rollout()
    until(lambda: len(found.pods) == replicas, f"{replicas} replicas run")


def measure(found: Installation, plane: ControlPlane, seconds: float) -> Idle:
    """Wait until nothing is left to do, and count for some seconds."""

    def is_quiet() -> bool:
        plane.audit.mark()
        time.sleep(_QUIET_S)
        return _calls(plane).total() <= _QUIET_CALLS

    until(is_quiet, "the replicas are quiet")
    with found.kubelet.probing_in_periods():
        started, before = time.monotonic(), _work(found)
        plane.audit.mark()
        time.sleep(seconds)
        calls, after = _calls(plane), _work(found)
        passed = time.monotonic() - started
    work = {name: after[name].since(before.get(name, Work()), passed) for name in after}
    return Idle(calls, work, passed)


def _calls(plane: ControlPlane) -> Calls:
    return Counter(
        (one.user.removeprefix(_OURS), one.verb, one.resource)
        for one in plane.audit.asked()
        if one.user.startswith(_OURS)
    )


def _work(found: Installation) -> dict[str, Work]:
    """Return the work of each pod's processes so far, as ``pod/role``."""
    used: dict[str, Work] = {}
    for pod in found.pods:
        roles = {pid: role for role, pid in found.processes(pod).items()}
        process = pod.containers[0].process
        assert process is not None
        root = psutil.Process(process.pid)
        for one in (root, *root.children(recursive=True)):
            role = roles.get(one.pid) or f"{roles.get(one.ppid(), 'supervisor')}'s"
            name = f"{pod.name}/{role}"
            for task in Path(f"/proc/{one.pid}/task").iterdir():
                used[name] = used.get(name, Work()) + _work_of(task)
    return used


def _work_of(task: Path) -> Work:
    """Return the work of one thread, none if it has ended."""
    try:
        cpu_ns = int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text()
    except OSError:
        return Work()
    return Work(cpu_ns / 1e9, float(status.split(_WAKES)[1].split()[0]))


def main() -> int:
    """Print both tables; with --check, fail above the limits of calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--policies", type=int, default=20)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="idle-") as folder,
        running_plane(Path(folder)) as plane,
        installation(plane, find_kubectl()) as found,
    ):
        start(found, args.policies)
        holder = measure(found, plane, args.seconds)
        scale(found, args.replicas)
        both = measure(found, plane, args.seconds)
    for title, idle in (("the holder of all leases", holder), ("all replicas", both)):
        print(f"\n{title}: {idle.a_minute:.0f} calls a minute")
        for (account, verb, resource), count in idle.calls.most_common():
            print(f"{count:6}  {account:32} {verb:8} {resource}")
        for name, work in {**idle.of_pods(), **idle.work}.items():
            percent, wakes = 100 * work.cpu_s, work.wakes
            print(f"{percent:6.2f} % of a core, {wakes:5.1f} wake-ups/s  {name}")
    each = (both.a_minute - holder.a_minute) / max(args.replicas - 1, 1)
    print(f"\neach other replica: {each:.1f} calls a minute")
    ours, every = ([*idle.of_pods().items()] for idle in (holder, both))
    others = [work.wakes for pod, work in every if pod != ours[0][0]]
    is_over = (
        holder.a_minute > HOLDER_CALLS_MAX
        or each > FOLLOWER_CALLS_MAX
        or ours[0][1].wakes > HOLDER_WAKES_MAX
        or max(others, default=0.0) > FOLLOWER_WAKES_MAX
    )
    return int(args.check and is_over)


if __name__ == "__main__":
    sys.exit(main())
