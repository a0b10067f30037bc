"""Attach one worker to the snapshot, the shared data and its metric page.

Room: webhook. Takes: Settings, the paths in the runtime folder, certificate files.
Gives: a Start, called in each worker after its fork. Next: attach/, wire, worker.
May touch: maps files of the runtime folder, threads, the event loop's timer.
Source: docs/architecture.md 3 (attach, swapped between two requests).
Over 400 lines: what a worker attaches, in the order in which it is attached.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from kyverno_mp.admission.decode import built_in_kind
from kyverno_mp.egress.answering import AnsweringHosts
from kyverno_mp.egress.kinds import KINDS
from kyverno_mp.errors import Preempted, SnapshotUnusable
from kyverno_mp.kube.rights import ADMISSION_ACCOUNT
from kyverno_mp.kube.shared_rights import SharedRights
from kyverno_mp.limits import LINKED_AHEAD_ALONE_NS_MAX
from kyverno_mp.program.cel_sources import EXECUTED, PlanContext
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.results.records import reporting_of
from kyverno_mp.settings.base import base_of
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import LEADER, Bell, ring
from kyverno_mp.snapshot.callers import CALLERS, callers_of
from kyverno_mp.snapshot.configured import SETTINGS, Configured, configured_of
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.rollouts import ROLLOUTS
from kyverno_mp.telemetry.denials import DenialFile
from kyverno_mp.telemetry.families import JSON_PAYLOADS
from kyverno_mp.telemetry.page import GAUGES, Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tracing import start_tracing
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import OF_PAYLOADS
from kyverno_mp.webhook.attach.ahead import LinkingAhead
from kyverno_mp.webhook.attach.cluster_data import cluster_data
from kyverno_mp.webhook.attach.cluster_policies import Context, FollowedRules
from kyverno_mp.webhook.attach.counts import Counts
from kyverno_mp.webhook.attach.followed import (
    Aside,
    FollowedPolicies,
    SnapshotFiles,
    link,
)
from kyverno_mp.webhook.attach.journals import Journals
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.attach.served import ServedPolicies
from kyverno_mp.webhook.attach.standings import PublishedStandings
from kyverno_mp.webhook.audit.metrics import PageRecords
from kyverno_mp.webhook.collector import Collector, LinkingLock
from kyverno_mp.webhook.configured import Compiled, CurrentConfiguration
from kyverno_mp.webhook.decisions import with_decisions
from kyverno_mp.webhook.http.callers import caller_check
from kyverno_mp.webhook.http.tls import Certificates, client_ca_of
from kyverno_mp.webhook.images import ServedImages, served_images
from kyverno_mp.webhook.live import Live, live_ports
from kyverno_mp.webhook.payloads import Judge, SnapshotPayloads
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review_threads import Reviewers
from kyverno_mp.webhook.shared import SharedClusterData
from kyverno_mp.webhook.wire import Gauges, RoleDependencies, wire
from kyverno_mp.webhook.worker import Served, Start

_LOG = logging.getLogger(__name__)
_DATA: Final = (
    *("namespaces", "configmaps", "roles", "globalcontext", "apicalls"),
    *(KINDS, CALLERS, ROLLOUTS),
)
_NEEDED: Final = frozenset(_DATA) - {KINDS, CALLERS, ROLLOUTS}
"""Without these labels and roles, a rule could miss a request that it matches."""
_AnyFollowed = FollowedPolicies[Any]
_ROLE: Final = "webhook"


class _Attached:
    """The segments that one worker follows, and its row in the control page."""

    def __init__(
        self, settings: Settings, places: Places, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._directory = places.snapshot
        self._poll_s = settings.snapshot_poll_ms / 1000
        page = Page.claim(places.pages, _ROLE)
        self.recorder = Recorder(page, settings.metrics_series_max)
        self._control = ControlPage.open(places.snapshot)
        self._served = ServedPolicies(self._control)
        self._served_last: list[int] = []
        self._loop_thread = threading.get_ident()
        self._callers_taken = 0
        self._whole = False
        self.callers = caller_check(settings)
        self.reviewers = Reviewers()
        self._collector = Collector(is_quiet=self.reviewers.is_idle)
        pid = os.getpid()
        self.slot = self._control.claim(pid, start_ticks(pid))
        self._ahead = LinkingAhead(
            self._collector, self._count_error, self._start_ns_max()
        )
        self.journals = Journals(settings, places, self.recorder)
        self.reporting = (
            None if self.journals.results is None else reporting_of(settings)
        )
        self.counts = Counts(settings, self.recorder, loop.time)
        self._rights = SharedRights(places.pages, ADMISSION_ACCOUNT)
        # A separate thread, because reviews of policies, which can be many and slow,
        # must not delay a changed policy.
        self._attacher = ThreadPoolExecutor(1, thread_name_prefix="attach")
        self._attaching: Future[None] | None = None
        files = SnapshotFiles(places.snapshot, self._control, self._refused)
        self._follow_data(files)
        self.live = live_ports(
            settings,
            self.cluster_data,
            self._kinds,
            self.counts.queries.add,
            PageRecords(self.recorder, loop).error,
            self._rights.rights,
        )
        self.answering = AnsweringHosts(time.monotonic)
        images = _images(settings, places, self.live, self.counts, self.answering)
        self._follow_policies(files, images)

    def _follow_data(self, files: SnapshotFiles) -> None:
        """Follow the operator's configuration and the shared cluster data."""
        self.data = {name: files.follow(name, _wrap_data) for name in _DATA}
        self._configured = files.follow(SETTINGS, _wrap_configured)
        self.configuration = CurrentConfiguration(
            self._configured.current, Configured(base_of(self._settings))
        )
        self.cluster_data = SharedClusterData(
            {name: follower.current for name, follower in self.data.items()}
        )

    def _follow_policies(self, files: SnapshotFiles, served: ServedImages) -> None:
        """Follow the policies, each kind in a separate segment."""
        user = background_user(self._settings)
        ports = cluster_data(self.cluster_data, self.live, served, self.configuration)
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
        engine = Engine(ports, clock, LinkingLock(self._collector))
        aside = Aside(self._defer, self._leave_loop)
        self.policies = FollowedRules(
            files,
            Context(
                engine,
                self._ahead,
                self._collector,
                None if self.journals.triggers is None else user,
                self.reporting,
                self.recorder.rules.forget_keys,
            ),
            self._is_whole,
            aside,
        )
        self._payloads = SnapshotPayloads(
            engine, self._payload_segments, served.policies
        )
        context = PlanContext(engine, user, served.policies)
        self.in_cel: dict[str, _AnyFollowed] = {
            row.segment: FollowedPolicies(
                files,
                row.segment,
                partial(link, row, context),
                self._is_whole,
                aside,
                self._ahead,
            )
            for row in EXECUTED
        }

    def judge(self) -> Judge | None:
        """Return what judges JSON payloads, None if the operator does not want it."""
        return self._payloads.judge if self._settings.json_payloads else None

    def on_payload(self, outcome: str, seconds: float) -> None:
        """Count a JSON payload; in the event loop."""
        self.recorder.series(JSON_PAYLOADS).observe((outcome,), seconds)

    def _payload_segments(self) -> Sequence[Any] | None:
        """Return the newest policies that can have the evaluation mode JSON."""
        followed = [self.in_cel[kind.segment].follower for kind in OF_PAYLOADS]
        linked = [one for each in followed if (one := each.current()) is not None]
        is_complete = len(linked) == len(followed) and self._is_whole()
        return [one.segment for one in linked] if is_complete else None

    def _start_ns_max(self) -> int:
        """Return how long to link policies before this worker accepts connections.

        Meanwhile the arbiter hears nothing from it.
        """
        silence_ns = int(self._settings.worker_silence_s_max * 1e9) // 2
        return silence_ns if self.slot.others() else LINKED_AHEAD_ALONE_NS_MAX

    def _kinds(self) -> Json | None:
        """Return the discovery rows that the leader published."""
        segment = self.data[KINDS].current()
        return None if segment is None else segment.get(KINDS)

    def _is_whole(self) -> bool:
        """Return whether each segment that policies need was attached once.

        The leader publishes them before the policies, but a file can be damaged.
        """
        if not self._whole:
            self._whole = self._configured.current() is not None and all(
                self.data[name].current() is not None for name in _NEEDED
            )
        return self._whole

    def records_successes(self) -> bool:
        """Return whether the operator wants events of successful rules."""
        configured = self.configuration.compiled().configured
        return configured.configuration.generate_success_events

    def listen(self) -> None:
        """Check for new generations when the bell rings, and periodically."""
        try:
            bell = Bell.of_worker(self._directory, os.getpid())
        except (OSError, SnapshotUnusable) as error:
            _LOG.warning("no notifications from the leader, polling instead: %s", error)
        else:
            self._loop.add_reader(bell.fileno(), self._on_bell, bell)
        self._poll()
        if self._ahead.begin_serving():
            for policies in self._kinds_of_policies():
                self._defer(policies.link_rest)

    def _on_bell(self, bell: Bell) -> None:
        # Clear before the check, so that a ring during the check is noticed.
        bell.clear()
        self._follow()

    def _poll(self) -> None:
        self._follow()
        self.counts.write(self.configuration.compiled().configured.metrics)
        self._rights.write()
        self._loop.call_later(self._poll_s, self._poll)

    def _follow(self) -> None:
        for _, follower in self._followers():
            follower.current()
        self._report_state()

    def _take_callers(self) -> None:
        """Accept the published path segments."""
        segment = self.data[CALLERS].current()
        if segment is None or segment.generation == self._callers_taken:
            return
        self._callers_taken = segment.generation
        try:
            self.callers.take(callers_of(segment))
        except SnapshotUnusable as error:
            self._refused(error)

    def tick(self, gauges: Gauges) -> None:
        """Write this worker's state to the page; retry rejected generations."""
        self._write_facts(gauges)
        self._retry()
        if self._collector.has_replaced and self._is_idle():
            self._defer(self._ahead.release)
        self._collector.tick(
            self._loop.time(),
            gauges.connections_ended,
            gauges.bytes_freed,
            [
                (segment.generation, segment.decoded_count)
                for segment in self._segments()
            ],
            gauges.reviews_bytes,
        )

    def _segments(self) -> Iterator[PolicySegment]:
        """Yield the segments of policies in force, one per kind."""
        for followed in self._kinds_of_policies():
            linked = followed.follower.current()
            if linked is not None:
                yield linked.segment

    def _write_facts(self, gauges: Gauges) -> None:
        page, policies = self.recorder.settled(), self.policies.follower
        page.set_gauge("heartbeat_ns", time.monotonic_ns())
        page.set_gauge("generation", policies.generation)
        undecoded = sum(len(segment.undecoded) for segment in self._segments())
        page.set_gauge("undecoded_policies", undecoded)
        linked = policies.current()
        if linked is not None:
            count = linked.segment.decoded_count + linked.source.kept
            page.set_gauge("linked_rules", count)
        if self.journals.events is not None:
            page.set_gauge("events_queue_depth", self.journals.events.waiting)
            page.set_gauge("events_queue_dropped", self.journals.events.dropped)
        for name in GAUGES:
            if hasattr(gauges, name):
                page.set_gauge(name, getattr(gauges, name))

    def _retry(self) -> None:
        """Attach again what was announced and could not be attached."""
        for _, follower in self._followers():
            if not follower.is_behind:
                continue
            if not follower.is_deferred:
                follower.refresh()
            elif self._is_idle():
                self._defer(follower.refresh)

    def _is_idle(self) -> bool:
        """Return whether the attaching thread is idle."""
        return self._attaching is None or self._attaching.done()

    def _report_state(self) -> None:
        self._take_callers()
        used = {name: follower.generation for name, follower in self._followers()}
        used[POLICIES] = self._served.of_all(used) if self._is_whole() else 0
        for name, generation in used.items():
            self.slot.serve(name, generation)
        served = list(used.values())
        if served != self._served_last:
            # The leader waits for this report before it sets policies Ready.
            self._served_last = served
            ring(self._directory, LEADER)

    def _kinds_of_policies(self) -> tuple[FollowedRules | _AnyFollowed, ...]:
        return self.policies, *self.in_cel.values()

    def _followers(self) -> list[tuple[str, Follower[Any]]]:
        return [
            (POLICIES, self.policies.follower),
            # After the policies, because the leader publishes the other segments first.
            *((name, one.follower) for name, one in self.in_cel.items()),
            (SETTINGS, self._configured),
            *self.data.items(),
        ]

    def _leave_loop(self) -> None:
        if threading.get_ident() == self._loop_thread:
            raise Preempted("webhook.preempted", "policies are being attached")

    def _defer(self, attach: Callable[[], None]) -> None:
        self._attaching = self._attacher.submit(attach)
        self._attaching.add_done_callback(self._attached_aside)

    def _attached_aside(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._count_error("webhook.defect")
            _LOG.error("internal error while attaching a snapshot", exc_info=error)
        self._in_loop(self._report_state)

    def _refused(self, error: SnapshotUnusable) -> None:
        self._count_error(error.code)
        _LOG.error("snapshot rejected: %s", error.message)

    def _count_error(self, code: str) -> None:
        # The page has one writer, the loop's thread.
        self._in_loop(lambda: self.recorder.errors.count((code,)))

    def _in_loop(self, call: Callable[[], None]) -> None:
        # The loop can already be closed when a late thread ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)


def make_start(settings: Settings, places: Places) -> Start:
    """Return the Start that Gunicorn's workers run after their fork."""

    def start(loop: asyncio.AbstractEventLoop) -> Served:
        attached = _Attached(settings, places, loop)
        served = wire(settings, loop, _dependencies(settings, places, attached, loop))
        attached.listen()
        return served

    return start


def _denials(settings: Settings, page: Page) -> DenialFile | None:
    """Return the file of denials, None without a dashboard or without room.

    A page that nobody reads has a name that another process may have, too.
    """
    if not (settings.dashboard and page.is_read):
        return None
    try:
        return DenialFile(page.path)
    except OSError as error:
        _LOG.warning("the dashboard shows no denials: %s", error)
        return None


def _dependencies(
    settings: Settings,
    places: Places,
    attached: _Attached,
    loop: asyncio.AbstractEventLoop,
) -> RoleDependencies:
    policies, journals, live = attached.policies, attached.journals, attached.live
    records = PageRecords(attached.recorder, loop)
    evaluate = SnapshotEvaluate(policies.planner, policies.knows)
    triggers = journals.trigger_sink(records)
    standing = PublishedStandings(attached.data[ROLLOUTS])
    return RoleDependencies(
        evaluate=evaluate,
        is_ready=evaluate.is_ready,
        records=with_decisions(
            records, settings.log_decisions, _denials(settings, attached.recorder.page)
        ),
        view=live.view if live else None,
        reviewers=attached.reviewers,
        sink=journals.event_sink(records, loop, attached.records_successes),
        triggers=triggers,
        unproved_triggers=triggers and triggers.without_proof(policies.has),
        results=journals.result_sink(records, attached.reporting),
        background_user=background_user(settings),
        recording=attached.counts.recording,
        tick=attached.tick,
        roles=attached.cluster_data,
        namespaces=attached.cluster_data,
        live_namespaces=live.namespaces if live else None,
        mutate=SnapshotMutate(policies.mutations, policies.knows),
        cel={kind: attached.in_cel[kind.segment].planner for kind in EXECUTED},
        filters=attached.configuration,
        top_kind=live.top_kind if live else built_in_kind,
        certificates=Certificates(places.cert, places.key, client_ca_of(settings)),
        peers=attached.slot,
        callers=attached.callers,
        tracer=start_tracing(settings, _ROLE),
        payloads=attached.judge(),
        on_payload=attached.on_payload,
        registries=attached.answering.shares_of,
        standing=standing,
        denials=journals.denial_sink(records, standing),
    )


def _images(
    settings: Settings,
    places: Places,
    live: Live | None,
    counts: Counts,
    answering: AnsweringHosts,
) -> ServedImages:
    return served_images(
        settings,
        places.images,
        live.read_secret if live else None,
        counts.image_cache.add,
        counts.registry_calls.add,
        counts.verifications.add,
        read_key_secret=live.read_key_secret if live else None,
        on_answer=answering.note,
    )


def background_user(settings: Settings) -> str:
    """Return the user name of the background pool."""
    return settings.background_service_account or (
        f"system:serviceaccount:{settings.namespace}:kyverno-background-controller"
    )


def _wrap_configured(segment: Segment, _previous: Compiled | None) -> Compiled:
    return Compiled(configured_of(DataSegment(segment)))


def _wrap_data(segment: Segment, _previous: DataSegment | None) -> DataSegment:
    return DataSegment(segment)
