"""Run a pool's coordinator whose work is to delete ConfigMaps, one by one.

Takes: a kubeconfig, a folder, the name of this replica. Next: test_holders.py. May
touch: the ConfigMaps of the namespace default with the label ``job``.
"""

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.pool.coordinator import PoolPlace, Tools, run_coordinator
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.log import set_up

LEASE: Final = "kyverno-e2e"
NAMESPACE: Final = "default"
CONFIG_MAPS: Final = core("configmaps")
HELD: Final = "held"
"""While the folder has this file, the work stops after ``HELD_AFTER`` deletions."""
HELD_AFTER: Final = 20
_PAUSE_S: Final = 0.005


def work(tools: Tools, stop: threading.Event, held: Path) -> None:
    """Delete the objects of a single list, without refreshing it, in batches of one."""
    done = 0
    client = tools.client
    objects = Objects(client).guarded(tools.election.guard)
    query = [("labelSelector", "job")]
    while not stop.wait(_PAUSE_S):
        found = client.get(CONFIG_MAPS.collection(NAMESPACE), query)["items"]
        for raw in found:
            if stop.wait(_PAUSE_S) or not tools.holds_lease():
                return
            # Between the check above and the call, whose guard must work, too.
            while done >= HELD_AFTER and held.exists() and not stop.wait(_PAUSE_S):
                pass
            done += 1
            metadata = raw["metadata"]
            with suppress(DependencyError, LeaseLost):
                objects.delete(
                    CONFIG_MAPS,
                    key_of(raw),
                    metadata["uid"],
                    resource_version=metadata["resourceVersion"],
                )


def main(kubeconfig: str, folder: str, name: str) -> None:
    """Run until SIGTERM."""
    set_up(name, "info")
    place = Path(folder)
    settings = Settings(pod_name=name, namespace=NAMESPACE, lease_retry_s=0.5)
    client = Client(Pool(from_kubeconfig(Path(kubeconfig))), "e2e-pool")
    run_coordinator(
        PoolPlace(
            name="e2e",
            lease=LEASE,
            settings=settings,
            runtime_dir=place,
            pages=place,
            snapshot=place,
        ),
        client,
        lambda tools, stop: work(tools, stop, place / HELD),
        frozenset,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
