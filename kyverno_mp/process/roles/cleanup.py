"""Run the coordinator of the cleanup pool.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM.
Next: process/roles/pool_start.py; cleanup/start.py does the work.
May touch: this process becomes the coordinator.
Source: docs/pools.md 1, 5.
"""

import threading
from typing import Final

from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.start import run as clean_up
from kyverno_mp.pool.coordinator import Tools
from kyverno_mp.process.roles.pool_authors import author_reason
from kyverno_mp.process.roles.pool_data import PoolData
from kyverno_mp.process.roles.pool_start import run_pool
from kyverno_mp.process.startup.start import Start

NAME: Final = "cleanup"
ACCOUNT: Final = "kyverno-cleanup-controller"
"""Upstream's name of the ServiceAccount and of the Lease."""


def run(start: Start) -> None:
    """Clean up while the lease is held, until SIGTERM."""
    run_pool(start, NAME, ACCOUNT, _work)


def _work(tools: Tools, data: PoolData, stop: threading.Event) -> None:
    """Clean up for one term of the lease."""
    clean_up(
        CleanupDependencies(
            client=tools.client,
            author_reason=author_reason(tools),
            cluster_data=data.cluster_data,
            events=tools.events,
            metrics=tools.metrics,
            settings=tools.place.settings,
            holds_lease=tools.holds_lease,
            health=tools.health,
            is_excluded=data.is_excluded,
            served=data.served,
            bound_namespaces=data.bound_namespaces,
            rights=tools.rights,
        ),
        stop,
    )
