"""What the measurements of the pools share: permissions, a watch, waiting, the result.

The watch runs in this process, so it tells when an object exists or is gone without a
call that the audit log would count for a pool.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from perf.servers import Unready, write_result
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane

_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_READS: Final = ("get", "list", "watch")
_WAIT_S: Final = 240.0
Row = dict[str, Any]


def run(
    name: str,
    args: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Path], Any],
    show: Callable[[Any], str],
    check: Callable[[Any], int],
) -> int:
    """Run a measurement; 0 = fine, 1 = an aim is missed, 2 = cannot measure."""
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as folder:
            found = measure(args, Path(folder))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print(show(found))
    write_result(name, {"rows" if isinstance(found, list) else "row": found}, args.json)
    return check(found) if args.check else 0


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of every measurement."""
    parser = argparse.ArgumentParser(description=(text or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when an aim is missed"
    )
    return parser


def grant(api: Api, pool: str, *writes: str) -> None:
    """Let the account of a pool, e.g. ``cleanup``, read and write ConfigMaps."""
    label = {f"rbac.kyverno.io/aggregate-to-{pool}-controller": "true"}
    verbs = [*_READS, *writes]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}
    metadata = {"name": f"perf:{pool}", "labels": label}
    api.create(_ROLES, {"metadata": metadata, "rules": [rule]})


class ConfigMaps:
    """Watches ConfigMaps; ``note`` is told each change: the key, and if it exists."""

    def __init__(
        self, plane: ControlPlane, note: Callable[[Key, bool], None], namespace: str
    ) -> None:
        client = Client(Pool(from_kubeconfig(plane.kubeconfig)), "perf")
        scope = WatchScope(
            resource=core("configmaps"), namespace=namespace, metadata_only=True
        )
        self._informer: Informer[bytes] = Informer(client, scope, whole)
        self._informer.on_change(self._changed)
        self._note = note
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Start to watch."""
        self._informer.start()
        if not self._informer.wait_synced(30):
            raise Unready("the watch does not start")
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._informer.stop()

    def _changed(self, key: Key) -> None:
        with self._lock:
            self._note(key, self._informer.get(key) is not None)


class Instants:
    """When something happened to each object, by name; any thread may write it."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}

    def count(self, prefix: str) -> int:
        """Return for how many objects of a part it happened."""
        return sum(name.startswith(prefix) for name in list(self.at_s))


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition. Raises: Unready."""
    end_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise Unready(what)
        time.sleep(0.1)
