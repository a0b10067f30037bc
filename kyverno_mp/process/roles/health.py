"""Answer probes, /metrics and /policies in a separate process.

Room: process. Takes: the runtime folder that the other processes write. Gives: HTTP/1.1
responses. Next: process/http_server.py reads the requests and sends the responses.
May touch: its listening socket, files of the runtime folder.
One thread computes the metrics for all clients, so a slow scrape delays no probe.
Source: docs/behaviour/controllers 2.1; docs/architecture.md 2.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.kube.shared_rights import read_rights
from kyverno_mp.leader.control.health import (
    read_leader_health,
    reasons_against,
    stale_resources,
)
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.leader.status import StatusReader
from kyverno_mp.limits import OTLP_FLUSH_S_MAX, RIGHTS_MISSING_MAX
from kyverno_mp.pool.health import PoolHealth, read_pool_health
from kyverno_mp.process.gauges import Pod, measure
from kyverno_mp.process.http_server import Asked, HttpServer, response_bytes
from kyverno_mp.process.metrics_push import Measured, pusher_of
from kyverno_mp.process.pages import (
    HTTPS_ONLY,
    JSON,
    PROBES,
    Answer,
    for_reader,
    json_text,
    plain,
    start_page,
    verdict,
)
from kyverno_mp.process.startup.certificate import Files, tls_of_metrics
from kyverno_mp.process.startup.certificate_expiry import CertificateExpiry
from kyverno_mp.process.startup.listen import address_of
from kyverno_mp.process.startup.summary import Summary, summary_of
from kyverno_mp.process.supervision.readiness import (
    Health,
    LagTimes,
    WorkerFacts,
    generation_served,
    pod_health,
    with_pools,
    without_policies,
    without_room,
)
from kyverno_mp.process.supervision.status import read_supervisor_status
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS, Configured, configured_of
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.room import FolderRoom
from kyverno_mp.telemetry.bound import ExposedSeries
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.expose import Format, PlainText, format_for, render
from kyverno_mp.telemetry.families import METRIC_PUSHES, RIGHTS_MISSING
from kyverno_mp.telemetry.page import is_running

_log = logging.getLogger(__name__)
_SCRAPE_S_MAX: Final = 60.0
_CONNECTIONS_MAX: Final = 256
_PROBLEMS_MAX: Final = 50
"""The number of problems of one kind that /healthz lists; /policies lists all of them.
"""
_LONG: Final = ("/metrics", "/policies")


class Reporter:
    """Computes responses from the files of the other processes."""

    def __init__(
        self,
        settings: Settings,
        runtime_dir: Path,
        queues: Mapping[str, Sequence[str]],
        pools: Sequence[str] = (),
        cert: Path | None = None,
    ) -> None:
        """``queues`` maps each role to the names of its queues.

        ``pools`` contains this pod's pools. ``cert`` is the file of the certificate
        that the workers serve.
        """
        self._queues = queues
        self.pushes: Counter[tuple[str, ...]] = Counter()
        """Numbers of pushes of the metrics, by outcome."""
        self._exposed = ExposedSeries(settings.metrics_lines_max)
        self._pools = pools
        self._rights_shown: set[tuple[str, ...]] = set()
        self._certificate = CertificateExpiry(cert)
        self._settings = settings
        self.measures = settings.metrics
        self._runtime_dir = runtime_dir
        self._status = StatusReader(runtime_dir)
        self._lag_times = LagTimes()
        self._control = ControlPage.open(runtime_dir / SNAPSHOT)
        self._configured: Follower[Configured] = Follower(
            runtime_dir / SNAPSHOT,
            self._control,
            SETTINGS,
            lambda segment, _previous: configured_of(DataSegment(segment)),
            on_refused=lambda error: _log.error("%s", error.message),
        )

    def liveness(self) -> Answer:
        """Respond 200 unless a restart of the pod may help."""
        return verdict(self._health().unlive)

    def readiness(self) -> Answer:
        """Respond 200 if every webhook worker serves and none lags for seconds.

        In a cluster, callers must also trust the certificate, and the policies must not
        be older than allowed.
        """
        return verdict(self._health().unready)

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the pod is not ready, empty if it is."""
        return self._health().unready

    def generation(self) -> int:
        """Return the generation of policies that every worker serves."""
        return generation_served(self._workers())

    def summary(self) -> Summary:
        """Return a summary of the policies in force and the omitted ones."""
        return summary_of(self._status.read())

    def start_page(self, accept: str) -> Answer:
        """Respond with the state in two lines, and the endpoints."""
        unready = self._health().unready
        state = f"not ready: {'; '.join(unready)}" if unready else "ready"
        lines = (f"kyverno-mp {__version__} is {state}", self.summary().text())
        settings, dashboard = self._settings, ""
        if settings.dashboard and settings.standalone:
            address = address_of(settings.dashboard_host, settings.dashboard_port)
            dashboard = f"http://{address}/"
        return HTTPStatus.OK, *start_page(accept, lines, dashboard)

    def healthz(self) -> Answer:
        """Respond with every problem, as JSON."""
        health = self._health()
        supervisor = read_supervisor_status(self._runtime_dir)
        missing = (one.problems() for one in read_rights(self._runtime_dir / PAGES))
        known = (*health.unready, *health.degraded)
        bad = tuple(dict.fromkeys((*known, *chain.from_iterable(missing))))
        body = {
            "status": "degraded" if bad else "ok",
            "reasons": bad,
            "problems": self._status.read().problems[:_PROBLEMS_MAX],
            "processes": [
                {
                    "name": state.name,
                    "pid": state.pid,
                    "restarts": state.restarts,
                    "crashLoop": state.crash_loop,
                }
                for state in (supervisor.processes if supervisor else ())
            ],
            "pools": [
                {"name": pool.name, "holdsLease": pool.holds_lease}
                for pool in self._pool_health().values()
                if pool is not None
            ],
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if bad else HTTPStatus.OK
        return status, JSON, json_text(body)

    def policies(self) -> Answer:
        """Respond with every policy and the generation that all workers serve."""
        status = self._status.read()
        body = {
            "generation": generation_served(self._workers()),
            "policies": [
                {
                    "kind": policy.kind,
                    "namespace": policy.namespace,
                    "name": policy.name,
                    "ready": policy.ready,
                    "code": policy.code,
                    "message": policy.message,
                    "ruleCount": policy.rule_count,
                    **({"file": policy.file} if policy.file else {}),
                }
                for policy in status.policies
            ],
            "problems": status.problems,
        }
        return HTTPStatus.OK, JSON, json_text(body)

    def metrics(self, form: Format = PlainText) -> Answer:
        """Respond with all metrics of all processes."""
        recorded, gauges, shown = self.measured()
        text = render(recorded, gauges, shown, form)
        return HTTPStatus.OK, form.content_type, text.encode()

    def measured(self) -> Measured:
        """Return the metrics of all processes, and which of them to expose."""
        pages = views(self._runtime_dir / PAGES)
        now_ns = time.monotonic_ns()
        leader_health = read_leader_health(self._runtime_dir)
        gauges = measure(
            pages,
            self._status.read(),
            Pod(
                supervisor=read_supervisor_status(self._runtime_dir),
                is_ready=not self._health().unready,
                certificate_ends_s=self._certificate.ends_s(),
                policies_heard_ns=leader_health.confirmed_ns if leader_health else 0,
                room=FolderRoom.of(self._runtime_dir),
            ),
            now_ns=now_ns,
            rule_series_max=self._settings.metrics_series_max,
            queues=self._queues,
        )
        shown = (self._configured.current() or Configured()).metrics
        merged = merge(pages, shown)
        for labels in self._missing_rights():
            merged[RIGHTS_MISSING][labels] = [1.0]
        pushed = {labels: float(count) for labels, count in self.pushes.items()}
        everything = {**gauges, METRIC_PUSHES: pushed} if pushed else gauges
        return self._exposed.bounded(merged, shown), everything, shown

    def _missing_rights(self) -> Iterator[tuple[str, ...]]:
        """Yield the labels of RIGHTS_MISSING for the workers' missing permissions.

        Policies choose the resources, so only a number of them ever have a series.
        """
        shown = self._rights_shown
        for account in read_rights(self._runtime_dir / PAGES):
            for right, _ in account.gauges():
                labels = account.account, *right
                if labels not in shown and len(shown) >= RIGHTS_MISSING_MAX:
                    yield RIGHTS_MISSING.overflow_of(labels)
                    continue
                shown.add(labels)
                yield labels

    def _workers(self) -> list[WorkerFacts]:
        self._control.clear_stale(is_running)
        pages = {page.pid: page for page in views(self._runtime_dir / PAGES)}

        def gauge(pid: int, name: str) -> int:
            page = pages.get(pid)
            return 0 if page is None else page.gauge(name)

        generations = {
            entry.pid: entry.generations[POLICIES] for entry in self._control.workers()
        }
        lagging = self._lag_times.lagging_ns(
            generations, self._status.read().generation, now_ns=time.monotonic_ns()
        )
        return [
            WorkerFacts(
                f"{self._settings.serves} worker {pid}",
                generation,
                gauge(pid, "heartbeat_ns"),
                lagging.get(pid, 0),
                gauge(pid, "undecoded_policies"),
            )
            for pid, generation in generations.items()
        ]

    def _pool_health(self) -> Mapping[str, PoolHealth | None]:
        return {name: read_pool_health(self._runtime_dir, name) for name in self._pools}

    def _health(self) -> Health:
        now_ns = time.monotonic_ns()
        health = pod_health(
            read_supervisor_status(self._runtime_dir),
            self._status.read().generation,
            self._workers(),
            expected=self._settings.webhook_workers,
            now_ns=now_ns,
        )
        status, settings = self._status.read(), self._settings
        unread = status.unread[:_PROBLEMS_MAX]
        full = without_room(FolderRoom.of(self._runtime_dir))
        health = replace(health, degraded=(*health.degraded, *unread, *full))
        if settings.standalone:
            if not settings.allow_empty:
                reasons = without_policies(status.policies)
                health = replace(health, unready=(*health.unready, *reasons))
            return health
        health = with_pools(
            health, self._pool_health(), expected=settings.webhook_workers
        )
        leader_health = read_leader_health(self._runtime_dir)
        against = reasons_against(
            leader_health,
            now_ns=now_ns,
            age_s_max=settings.policies_age_s_max,
            webhook=settings.webhook_workers > 0,
        )
        old = stale_resources(leader_health, now_ns=now_ns)
        return replace(
            health,
            unready=(*health.unready, *against),
            degraded=(*health.degraded, *old),
        )


class Server:
    """Answers GET and HEAD of a few paths."""

    def __init__(self, reporter: Reporter, tls: ssl.SSLContext | None = None) -> None:
        self._scraper = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._scrapes: dict[Format, asyncio.Future[Answer]] = {}
        self._reporter = reporter
        self._routes: dict[str, Callable[[], Answer]] = {
            "/health/liveness": reporter.liveness,
            "/health/readiness": reporter.readiness,
            # As the probes of upstream's authorizer are called.
            "/livez": reporter.liveness,
            "/readyz": reporter.readiness,
            "/healthz": reporter.healthz,
            "/policies": reporter.policies,
        }
        self._server = HttpServer(
            self._respond,
            connections_max=_CONNECTIONS_MAX,
            is_long=lambda asked: asked.path in _LONG,
            tls=tls,
        )
        self._needs_tls = tls is not None

    async def serve(self, listener: socket.socket) -> None:
        """Serve until SIGTERM."""
        await self._server.serve(listener)

    def measured(self) -> Measured:
        """Return the metrics; for another thread, as a scrape."""
        return self._scraper.submit(self._reporter.measured).result()

    async def _respond(self, asked: Asked) -> bytes:
        if self._needs_tls and not asked.is_tls and asked.path not in PROBES:
            return response_bytes(asked.method, *HTTPS_ONLY)
        accept = asked.headers.get("accept", "")
        answer = await self._answer(asked.method, asked.path, accept)
        return response_bytes(asked.method, *answer)

    async def _answer(self, method: str, path: str, accept: str = "") -> Answer:
        if not path:
            return plain(HTTPStatus.BAD_REQUEST)
        if path not in ("/", "/metrics") and path not in self._routes:
            return plain(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED)
        if path == "/metrics":
            if not self._reporter.measures:
                return plain(HTTPStatus.NOT_FOUND)
            return await self._metrics(format_for(accept))
        if path == "/":
            return self._reporter.start_page(accept)
        status, content_type, body = self._routes[path]()
        return status, content_type, for_reader(content_type, body, accept)

    def _metrics(self, form: Format) -> Awaitable[Answer]:
        scrape = self._scrapes.get(form)
        if scrape is None or scrape.done():
            loop = asyncio.get_running_loop()
            scrape = loop.run_in_executor(self._scraper, self._reporter.metrics, form)
            self._scrapes[form] = scrape
        return asyncio.wait_for(asyncio.shield(scrape), _SCRAPE_S_MAX)


def run(
    settings: Settings,
    runtime_dir: Path,
    listener: socket.socket,
    queues: Mapping[str, Sequence[str]],
    pools: Sequence[str] = (),
    files: Files | None = None,
) -> None:
    """Serve until SIGTERM; ``files`` has the certificate that the workers serve."""
    cert = None if files is None else files.cert
    reporter = Reporter(settings, runtime_dir, queues, pools, cert)
    server = Server(reporter, tls_of_metrics(settings, files))
    pusher = pusher_of(settings, server.measured, reporter.pushes)
    asyncio.run(server.serve(listener))
    if pusher is not None:
        pusher.stop(OTLP_FLUSH_S_MAX)
