"""Shared parts of the pools' measurements: a watch, creations, figures, targets.

Takes: a control plane (perf/cluster.py). Gives: rows of figures, and their comparison
with targets. Used by perf/{cleanup,generate,scan}.py.
"""

import statistics
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

import psutil

from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from perf.servers import Unready
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane

_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
CREATORS: Final = 16
"""Number of connections that create objects; one would be slower than the API
server.
"""
MIB: Final = 2**20
Row = dict[str, Any]


class Watch:
    """A watch of some objects' metadata; ``note`` gets the key of each change."""

    def __init__(
        self, plane: ControlPlane, scope: WatchScope, note: Callable[[Key], None]
    ) -> None:
        client = Client(Pool(from_kubeconfig(plane.kubeconfig)), "perf")
        self._informer: Informer[bool] = Informer(client, scope, lambda _raw: True)
        self._informer.on_change(note)

    def __enter__(self) -> Self:
        """Start to watch. Raises: Unready."""
        self._informer.start()
        if not self._informer.wait_synced(30):
            raise Unready("the watch does not start")
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._informer.stop()

    def __len__(self) -> int:
        return len(self._informer)

    def __contains__(self, key: Key) -> bool:
        return self._informer.get(key) is not None


def create_all(
    plane: ControlPlane, path: str, bodies: Iterable[Mapping[str, Any]]
) -> None:
    """Create objects of one collection over a few connections."""
    local = threading.local()

    def one(raw: Mapping[str, Any]) -> None:
        if not hasattr(local, "api"):
            local.api = Api(plane.access)
        local.api.create(path, dict(raw))

    with ThreadPoolExecutor(CREATORS) as pool:
        for _ in pool.map(one, bodies):
            pass


def grant(api: Api, role: str, verbs: Sequence[str]) -> None:
    """Grant a pool's account (``cleanup``, ``background``) access to ConfigMaps."""
    label = {f"rbac.kyverno.io/aggregate-to-{role}-controller": "true"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": list(verbs)}
    metadata = {"name": f"perf:{role}", "labels": label}
    api.create(_ROLES, {"metadata": metadata, "rules": [rule]})


def lateness(late_s: Sequence[float]) -> Row:
    """Return the percentiles of many delays. Unit: seconds."""
    cuts = statistics.quantiles(late_s, n=100)
    return {
        "late_p50_s": round(cuts[49], 3),
        "late_p99_s": round(cuts[98], 3),
        "late_max_s": round(max(late_s), 3),
    }


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and its children so far."""
    family = (process, *process.children(recursive=True))
    return float(sum(sum(one.cpu_times()[:2]) for one in family))


def pss_mib(process: psutil.Process) -> float:
    """Return the memory of a process, with its share of shared pages."""
    return round(float(process.memory_full_info().pss) / MIB, 1)


def missed(row: Row, most: Mapping[str, float]) -> int:
    """Print which figures are above their targets; return the exit code."""
    names = [name for name, target in most.items() if row[name] > target]
    for name in names:
        print(f"missed: {name} is {row[name]}, the target is {most[name]}")
    return 1 if names else 0
