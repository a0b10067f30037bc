"""Start the coordinator of a pool; shared by all pools.

Room: process. Takes: Start, the name and the account of a pool. Gives: nothing; ends at
SIGTERM.
Next: pool/coordinator.py runs the work, when the leader has published its data.
May touch: this process becomes the coordinator. Source: docs/pools.md 1.
"""

import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.pool.account import open_client_as
from kyverno_mp.pool.coordinator import PoolPlace, Tools, run_coordinator
from kyverno_mp.process.roles.pool_data import PoolData, follow_successes
from kyverno_mp.process.startup.start import Start

_POLL_S: Final = 0.1
PoolWork = Callable[[Tools, PoolData, threading.Event], None]
"""Does the work for one term of the lease, until the event is set or the lease is lost.
"""


def run_pool(
    start: Start,
    name: str,
    account: str,
    work: PoolWork,
    *,
    works_aside: bool = False,
) -> None:
    """Run the coordinator; ``account`` names its ServiceAccount and its Lease.

    ``works_aside``: the work also runs beside another program that holds the lease.
    """
    settings = start.settings
    place = PoolPlace(
        name=name,
        lease=account,
        settings=settings,
        runtime_dir=start.runtime_dir,
        pages=start.runtime_dir / PAGES,
        snapshot=start.runtime_dir / SNAPSHOT,
    )

    def work_on_data(tools: Tools, stop: threading.Event) -> None:
        data = PoolData(settings, place.snapshot, tools.client, account)
        while not data.is_whole():
            if stop.wait(_POLL_S):
                return
        work(tools, data, stop)

    client = open_client_as(settings, account)
    successes = follow_successes(place.snapshot)
    run_coordinator(place, client, work_on_data, successes, works_aside=works_aside)
