"""Serve the dashboard in a process of its own.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM. Next: dashboard/site.py
writes the pages, process/http_server.py sends them.
May touch: its listening socket, files of the runtime folder; the API server, reading
policy reports as the account of the reports pool.
Source: docs/dashboard.md; docs/decisions.md (the dashboard has a process of its own).

No probe and no review waits for a page. Pages are written one at a time, in a thread.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from kyverno_mp.dashboard.access import Guard
from kyverno_mp.dashboard.entries import DIMENSIONS, Counts
from kyverno_mp.dashboard.facts import Facts
from kyverno_mp.dashboard.history import REPORTS, REVIEWS, History, Series
from kyverno_mp.dashboard.results import Results
from kyverno_mp.dashboard.site import HTML, Response, Site
from kyverno_mp.dashboard.watch import ReportWatch
from kyverno_mp.leader.loop import PAGES
from kyverno_mp.limits import DASHBOARD_CONNECTIONS_MAX
from kyverno_mp.pool.account import open_client_as
from kyverno_mp.process import reports
from kyverno_mp.process.dashboard_facts import PodFacts
from kyverno_mp.process.health import Reporter
from kyverno_mp.process.http_server import Asked, HttpServer, response_bytes
from kyverno_mp.process.start import Start
from kyverno_mp.reports.objects import OPEN_REPORTS, POLICY_REPORTS
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import DASHBOARD_LEFT_OUT, DASHBOARD_REQUESTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder

NAME: Final = "dashboard"
_SAMPLE_S: Final = 60.0
_TICK_S: Final = 1.0


def run(start: Start, pools: tuple[str, ...]) -> None:
    """Serve pages until SIGTERM. ``pools``: the names of this pod's."""
    listener = start.dashboard
    assert listener is not None
    settings = start.settings
    results = Results(time.monotonic)
    watch = _watch(settings, results)
    if watch is not None:
        watch.start()
    reporter = Reporter(settings, start.runtime_dir, {}, pools)
    facts = PodFacts(start.runtime_dir, reporter)
    history = History(_SAMPLE_S)
    guard = Guard(
        Path(settings.dashboard_token_file) if settings.dashboard_token_file else None
    )
    page = Page.claim(start.runtime_dir / PAGES, NAME)
    recorder = Recorder(page, settings.metrics_series_max)
    desk = _Desk(Site(guard, facts, results, history, watch), recorder)
    sampler = Sampler(facts, results if watch else None, history)
    server = HttpServer(
        desk.answer,
        connections_max=DASHBOARD_CONNECTIONS_MAX,
        is_long=lambda _asked: True,
    )

    async def work() -> None:
        """Serve, and take samples in the same thread as pages."""
        ticking = asyncio.create_task(desk.tick(sampler, results))
        await server.serve(listener)
        ticking.cancel()

    asyncio.run(work())


def _watch(settings: Settings, results: Results) -> ReportWatch | None:
    if settings.standalone:
        return None
    client = open_client_as(settings, reports.ACCOUNT)
    kinds = OPEN_REPORTS if settings.reports_open else POLICY_REPORTS
    return ReportWatch(client, kinds, results)


class Sampler:
    """Takes samples for charts when they are due."""

    def __init__(self, facts: Facts, results: Results | None, history: History) -> None:
        """``results`` None: there are no stored reports."""
        self._facts = facts
        self._results = results
        self._history = history
        self._next_s = 0.0

    def take_due(self, now_s: float, time_s: float) -> bool:
        """Take a sample if one is due. ``time_s``: Unix time; ``now_s``: monotonic."""
        if now_s < self._next_s:
            return False
        activity = self._facts.activity()
        found: dict[Series, Counts] = {Series(REVIEWS): activity.totals}
        if self._results is not None:
            found[Series(REPORTS)] = self._results.totals()
        for dimension in DIMENSIONS:
            for one in activity.groups(dimension):
                found[Series(REVIEWS, dimension, one.value)] = one.counts
            if self._results is not None:
                for one in self._results.groups(dimension):
                    found[Series(REPORTS, dimension, one.value)] = one.counts
        self._history.add(time_s, found)
        self._next_s = now_s + self._history.interval_s
        return True


class _Desk:
    """Passes requests to the one thread that writes pages, and counts them."""

    def __init__(self, site: Site, recorder: Recorder) -> None:
        self._site = site
        self._requests = recorder.series(DASHBOARD_REQUESTS)
        self._left_out = recorder.series(DASHBOARD_LEFT_OUT)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="pages")

    async def answer(self, asked: Asked) -> bytes:
        """Return the whole response to a request."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._writer, self._respond, asked)
        self._requests.count((found.outcome,))
        return response_bytes(
            asked.method, found.status, HTML, found.body, found.headers
        )

    def _respond(self, asked: Asked) -> Response:
        return self._site.respond(asked.method, asked.path, asked.query, asked.headers)

    async def tick(self, sampler: Sampler, results: Results) -> None:
        """Take samples until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(
                self._writer, sampler.take_due, time.monotonic(), time.time()
            )
            self._left_out.hold((), float(results.left_out))
            await asyncio.sleep(_TICK_S)
