"""Run the coordinator of the background pool.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM.
Next: process/roles/pool_start.py; background/start.py does the work.
May touch: this process becomes the coordinator.
Source: docs/pools.md 1, 3.
"""

import threading
import time
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.results import RuleResults
from kyverno_mp.background.start import run as work_in_background
from kyverno_mp.limits import RESULTS_WAITING_MAX
from kyverno_mp.pool.coordinator import Tools
from kyverno_mp.process.roles.pool_authors import author_reason
from kyverno_mp.process.roles.pool_data import PoolData
from kyverno_mp.process.roles.pool_start import run_pool
from kyverno_mp.process.startup.start import Start
from kyverno_mp.queues.journal import RESULTS, Journal
from kyverno_mp.results.records import reporting_of

NAME: Final = "background"
ACCOUNT: Final = "kyverno-background-controller"
"""Upstream's name of the ServiceAccount and of the Lease."""


def run(start: Start) -> None:
    """Generate and mutate while the lease is held, until SIGTERM.

    While another program holds it, hand over what only our pods can read.
    """
    journal = _journal(start)

    def work(tools: Tools, data: PoolData, stop: threading.Event) -> None:
        _work(tools, data, stop, _results(journal, tools))

    run_pool(start, NAME, ACCOUNT, work, works_aside=True)


def _journal(start: Start) -> Journal | None:
    """Return the journal of results, None if no pool writes reports."""
    if reporting_of(start.settings) is None:
        return None
    folder = RESULTS.folder(start.runtime_dir)
    return Journal.claim(folder, RESULTS_WAITING_MAX, RESULTS.ring_bytes)


def _results(journal: Journal | None, tools: Tools) -> RuleResults | None:
    reporting = reporting_of(tools.place.settings)
    if journal is None or reporting is None:
        return None
    return RuleResults(journal.append, reporting, tools.metrics, time.time_ns)


def _work(
    tools: Tools, data: PoolData, stop: threading.Event, results: RuleResults | None
) -> None:
    """Do the pool's work for one term of the lease."""
    work_in_background(
        BackgroundDependencies(
            client=tools.client,
            author_reason=author_reason(tools),
            cluster_data=data.cluster_data,
            events=tools.events,
            metrics=tools.metrics,
            settings=tools.place.settings,
            holds_lease=tools.holds_lease,
            health=tools.health,
            results=results,
            threshold=data.update_request_threshold,
            hands_over=tools.is_aside,
        ),
        stop,
    )
