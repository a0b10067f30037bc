"""Run the coordinator of the background pool.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM.
Next: process/pool_start.py; background/start.py does the work.
May touch: this process becomes the coordinator.
Source: docs/pools.md 1, 3.
"""

import threading
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.start import run as work_in_background
from kyverno_mp.pool.coordinator import Tools
from kyverno_mp.process.pool_data import PoolData
from kyverno_mp.process.pool_start import run_pool
from kyverno_mp.process.start import Start

NAME: Final = "background"
ACCOUNT: Final = "kyverno-background-controller"
"""Name of the ServiceAccount, and of the Lease; upstream's."""


def run(start: Start) -> None:
    """Generate and mutate while the lease is held, until SIGTERM."""
    run_pool(start, NAME, ACCOUNT, _work)


def _work(tools: Tools, data: PoolData, stop: threading.Event) -> None:
    """Work for one term of the lease."""
    work_in_background(
        BackgroundDependencies(
            client=tools.client,
            cluster_data=data.cluster_data,
            events=tools.events,
            metrics=tools.metrics,
            settings=tools.place.settings,
            holds_lease=tools.holds_lease,
            health=tools.health,
        ),
        stop,
    )
