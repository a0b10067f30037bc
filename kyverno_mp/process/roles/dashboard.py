"""Serve the dashboard in a separate process.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM. Next: dashboard/site.py
writes the pages, process/http_server.py sends them.
May touch: its listening socket, files of the runtime folder; the API server, reading
policy reports as the account of the reports pool.
Source: docs/dashboard.md; docs/decisions.md (the dashboard has its own process).

Neither probes nor reviews wait for a page. Pages are written one at a time, in a
thread.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from kyverno_mp.dashboard.access import Guard
from kyverno_mp.dashboard.entries import DIMENSIONS, Counts
from kyverno_mp.dashboard.facts import Facts
from kyverno_mp.dashboard.history import REPORTS, REVIEWS, History, Series
from kyverno_mp.dashboard.results import Results
from kyverno_mp.dashboard.site import Response, Site, busy
from kyverno_mp.dashboard.watch import ReportWatch
from kyverno_mp.kube.rights import MissingRights
from kyverno_mp.kube.shared_rights import SharedRights
from kyverno_mp.leader.loop import PAGES
from kyverno_mp.limits import DASHBOARD_CONNECTIONS_MAX, DASHBOARD_PAGES_MAX
from kyverno_mp.pool.account import open_client_as
from kyverno_mp.process.http_server import Asked, Gate, HttpServer, response_bytes
from kyverno_mp.process.roles import reports
from kyverno_mp.process.roles.dashboard_facts import PodFacts
from kyverno_mp.process.roles.health import Reporter
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.readiness import DASHBOARD
from kyverno_mp.reports.objects import OPEN_REPORTS, POLICY_REPORTS
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import DASHBOARD_LEFT_OUT, DASHBOARD_REQUESTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder

_log = logging.getLogger(__name__)
NAME: Final = DASHBOARD
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_SAMPLE_S: Final = 60.0
_TICK_S: Final = 1.0


def run(start: Start, pools: tuple[str, ...]) -> None:
    """Serve pages until SIGTERM. ``pools`` contains the names of this pod's pools."""
    listener = start.dashboard
    assert listener is not None
    settings = start.settings
    results = Results(time.monotonic)
    shared = SharedRights(start.runtime_dir / PAGES, reports.ACCOUNT)
    watch = _watch(settings, results, shared.rights)
    if watch is not None:
        watch.start()
    reporter = Reporter(settings, start.runtime_dir, {}, pools)
    facts = PodFacts(start.runtime_dir, reporter)
    history = History(_SAMPLE_S)
    guard = Guard(
        Path(settings.dashboard_token_file) if settings.dashboard_token_file else None
    )
    if not guard.has_token and settings.dashboard_host not in _LOOPBACK:
        _log.warning(
            "the dashboard listens on %s without a token", settings.dashboard_host
        )
    page = Page.claim(start.runtime_dir / PAGES, NAME)
    recorder = Recorder(page, settings.metrics_series_max)
    site = Site(guard, facts, results, history, watch)
    requests = recorder.series(DASHBOARD_REQUESTS)
    left_out = recorder.series(DASHBOARD_LEFT_OUT)
    sampler = Sampler(
        facts,
        results if watch else None,
        history,
        lambda: watch is None or watch.synced,
    )

    def tick() -> None:
        """Take a sample when one is due."""
        facts.sample(time.monotonic())
        sampler.take_due(time.monotonic(), time.time())
        left_out.hold((), float(results.left_out))
        shared.write()

    serve_pages(site, listener, lambda one: requests.count((one,)), tick)


class Pages(Protocol):
    """The pages to serve; ``kyverno_mp.dashboard.site.Site`` or a test double."""

    def refusal(self, headers: Mapping[str, str]) -> Response | None:
        """Return the response that rejects a request, None if it is admitted."""

    def respond(
        self, method: str, path: str, query: str, headers: Mapping[str, str]
    ) -> Response:
        """Answer a request."""


def serve_pages(
    site: Pages,
    listener: socket.socket,
    count: Callable[[str], None],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM.

    One thread writes the pages and runs ``tick``, one at a time; ``tick`` is called
    each second. ``count`` receives the outcome of each request.
    """
    writer = ThreadPoolExecutor(1, thread_name_prefix="pages")
    turn = asyncio.Lock()

    def sent(asked: Asked, response: Response) -> bytes:
        count(response.outcome)
        return response_bytes(
            asked.method,
            response.status,
            response.content_type,
            response.body,
            response.headers,
        )

    def refusal(asked: Asked) -> bytes | None:
        found = site.refusal(asked.headers)
        return None if found is None else sent(asked, found)

    async def answer(asked: Asked) -> bytes:
        async with turn:
            if asked.is_gone():
                raise ConnectionResetError
            found = await asyncio.get_running_loop().run_in_executor(
                writer,
                site.respond,
                asked.method,
                asked.path,
                asked.query,
                asked.headers,
            )
        return sent(asked, found)

    async def tick_each_second() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(writer, tick)
            await asyncio.sleep(_TICK_S)

    async def work() -> None:
        server = HttpServer(
            answer,
            connections_max=DASHBOARD_CONNECTIONS_MAX,
            gate=Gate(refusal, lambda asked: sent(asked, busy()), DASHBOARD_PAGES_MAX),
        )
        # If a tick fails, the process ends, and the supervisor starts a new one.
        ticking = asyncio.create_task(tick_each_second())
        serving = asyncio.create_task(server.serve(listener))
        await asyncio.wait((ticking, serving), return_when=asyncio.FIRST_COMPLETED)
        for one in (ticking, serving):
            if one.done():
                one.result()
        ticking.cancel()

    asyncio.run(work())


def _watch(
    settings: Settings, results: Results, rights: MissingRights
) -> ReportWatch | None:
    if settings.standalone:
        return None
    client = open_client_as(settings, reports.ACCOUNT)
    client.rights = rights
    kinds = OPEN_REPORTS if settings.reports_open else POLICY_REPORTS
    return ReportWatch(client, kinds, results)


class Sampler:
    """Takes samples for charts when they are due."""

    def __init__(
        self,
        facts: Facts,
        results: Results | None,
        history: History,
        is_read: Callable[[], bool] = lambda: True,
    ) -> None:
        """``results`` is None if there are no stored reports.

        ``is_read`` returns whether all stored reports were read. The first sample waits
        for this, but for at most one interval, so that a chart does not begin with
        zeros.
        """
        self._facts = facts
        self._results = results
        self._history = history
        self._is_read = is_read
        self._latest_s: float | None = None
        """The latest time of the first sample."""
        self._next_s = 0.0

    def take_due(self, now_s: float, time_s: float) -> bool:
        """Take a sample if one is due. ``time_s``: Unix time; ``now_s``: monotonic."""
        if self._latest_s is None:
            self._latest_s = now_s + self._history.interval_s
        is_early = now_s < self._latest_s and not self._is_read()
        if now_s < self._next_s or is_early:
            return False
        activity = self._facts.activity()
        found: dict[Series, Counts] = {Series(REVIEWS): activity.totals}
        if self._results is not None:
            found[Series(REPORTS)] = self._results.totals()
        for dimension in DIMENSIONS:
            for group in activity.groups(dimension):
                found[Series(REVIEWS, dimension, group.value)] = group.counts
            if self._results is not None:
                for one in self._results.groups(dimension):
                    found[Series(REPORTS, dimension, one.value)] = one.counts
        self._history.add(time_s, found)
        self._next_s = now_s + self._history.interval_s
        return True
