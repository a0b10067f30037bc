"""Attach one worker to the snapshot, the shared data and its metric page.

Room: webhook. Takes: Settings, the paths in the runtime folder, certificate files.
Gives: a Start, called in each worker after its fork. Next: wire, worker.
May touch: maps files of the runtime folder, threads, the event loop's timer.
Source: docs/architecture.md 3 (attach, swapped between two requests).

Over 400 lines: the list of everything that a worker attaches to, wired in one place.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from kyverno_mp.admission.decode import built_in_kind
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.kinds import KINDS
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.errors import SnapshotUnusable, StateError
from kyverno_mp.limits import (
    FINE_GRAINED_KEPT_MAX,
    RESULTS_WAITING_MAX,
    TRIGGERS_WAITING_MAX,
)
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.program.cel_policies.generating_plan import (
    GeneratingPlanner,
    LinkedGeneratingTrigger,
)
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.image_policies.evaluate import Begin, LinkedImagePolicy
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import (
    Changing,
    MutationPlanner,
    link_mutation,
)
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.program.validating_policy.plan import CelPlanner
from kyverno_mp.program.validating_policy.source import CelPolicySource, CelSource
from kyverno_mp.queues.journal import LOST, RESULTS, TRIGGERS, Journal
from kyverno_mp.reports.travel import reporting_of
from kyverno_mp.settings.base import base_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import LEADER, Bell, ring
from kyverno_mp.snapshot.cel_policies import CEL_POLICIES, CelPolicySegment
from kyverno_mp.snapshot.configured import SETTINGS, Configured, configured_of
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.generating_policies import (
    GENERATING_POLICIES,
    GeneratingPolicySegment,
)
from kyverno_mp.snapshot.image_policies import IMAGE_POLICIES, ImagePolicySegment
from kyverno_mp.snapshot.mutating_policies import (
    MUTATING_POLICIES,
    MutatingPolicySegment,
)
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.telemetry.families import (
    GC_PAUSES,
    IMAGE_CACHE,
    IMAGE_VERIFICATIONS,
    QUERIES,
    RECORDED_REVIEWS,
    RECORDING_FILES_DELETED,
    REGISTRY_CALLS,
)
from kyverno_mp.telemetry.page import FACTS, Page, start_ticks
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally, Timings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.audit.metrics import PageRecords
from kyverno_mp.webhook.audit.sink import EventOptions, JournalSink, LogSink
from kyverno_mp.webhook.collector import Collector, Pauses
from kyverno_mp.webhook.configured import Compiled, CurrentConfiguration
from kyverno_mp.webhook.decisions import with_decisions
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.images import served_images
from kyverno_mp.webhook.live import live_ports
from kyverno_mp.webhook.ports import AuditSink
from kyverno_mp.webhook.recording.recorder import recorder_of
from kyverno_mp.webhook.results.sink import ResultSink
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.shared import SharedClusterData
from kyverno_mp.webhook.triggers.lost import LostPolicies
from kyverno_mp.webhook.triggers.sink import TriggerSink
from kyverno_mp.webhook.wire import Gauges, RoleDependencies, wire
from kyverno_mp.webhook.worker import Served, Start

_LOG = logging.getLogger(__name__)
_DATA: Final = ("namespaces", "configmaps", "roles", "globalcontext", "apicalls", KINDS)
_NEEDED: Final = frozenset(_DATA) - {KINDS}
"""Without these labels and roles, a rule could miss a request that it matches."""
_ROLE: Final = "webhook"


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of the files and folders that a worker shares with other processes."""

    snapshot: Path
    pages: Path
    cert: Path
    key: Path
    journals: Path | None = None
    """None if there is no cluster for events."""
    triggers: Path | None = None
    """None if no background pool runs generate and mutate-existing rules."""
    lost: Path | None = None
    """Set if ``triggers`` is."""
    results: Path | None = None
    """None if no reports pool runs."""
    images: Path | None = None
    """None if results of image verification are not cached."""


@dataclass(frozen=True, slots=True)
class _LinkedSnapshot:
    """One generation of policies, with its planners."""

    segment: PolicySegment
    source: SegmentSource[LinkedRule]
    mutating: SegmentSource[Changing]
    planner: ValidationPlanner
    mutations: MutationPlanner


@dataclass(frozen=True, slots=True)
class _LinkedCelPolicies:
    """One generation of policies in CEL, with its planner."""

    segment: CelPolicySegment
    planner: CelPlanner


@dataclass(frozen=True, slots=True)
class _LinkedMutatingPolicies:
    """One generation of MutatingPolicies, with its planner."""

    segment: MutatingPolicySegment
    planner: MutatingPlanner


@dataclass(frozen=True, slots=True)
class _LinkedGeneratingPolicies:
    """One generation of GeneratingPolicies, with its planner."""

    segment: GeneratingPolicySegment
    planner: GeneratingPlanner


@dataclass(frozen=True, slots=True)
class _LinkedImagePolicies:
    """One generation of ImageValidatingPolicies, with its planner."""

    segment: ImagePolicySegment
    planner: ImagePlanner


class _Attached:
    """The segments that one worker follows, and its row in the control page."""

    def __init__(
        self, settings: Settings, places: Places, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.page = Page.claim(places.pages, _ROLE)
        self.recorder = Recorder(self.page, settings.metrics_series_max)
        control = ControlPage.open(places.snapshot)
        self._control = control
        self._directory = places.snapshot
        self._served_last: list[int] = []
        pid = os.getpid()
        self._collector = Collector()
        self._pauses = Pauses()
        self._pauses.watch()
        self.slot = control.claim(pid, start_ticks(pid))
        self._loop = loop
        self.journal = _journal(settings, places, self.recorder)
        self.triggers = _trigger_journals(places, self.recorder)
        self.results = _result_journal(places, self.recorder)
        self._reporting = None if self.results is None else reporting_of(settings)
        self._background_user = (
            None if self.triggers is None else background_user(settings)
        )
        self._poll_s = settings.snapshot_poll_ms / 1000
        self._queries = Tally()
        self._deleted = Tally()
        self._image_cache, self._registry_calls = Tally(), Tally()
        self._verifications = Timings()
        self.recording = recorder_of(settings, lambda: self._deleted.add(()))
        self._counted_by: MetricsConfiguration | None = None
        self._counted_since_s = loop.time()
        self._asked_policies: set[str] = set()
        self._asked_cel_policies: set[str] = set()
        self._asked_mutating_policies: set[str] = set()
        self._asked_generating_policies: set[str] = set()
        self._asked_image_policies: set[str] = set()
        self._whole = False
        # A separate thread, because reviews of policies, which can be many and slow,
        # must not delay a changed policy.
        self._attacher = ThreadPoolExecutor(1, thread_name_prefix="attach")
        self._attaching: Future[None] | None = None
        self.data = {
            name: Follower(
                places.snapshot, control, name, _wrap_data, on_refused=self._refused
            )
            for name in _DATA
        }
        self._configured: Follower[Compiled] = Follower(
            places.snapshot,
            control,
            SETTINGS,
            _wrap_configured,
            on_refused=self._refused,
        )
        self.configuration = CurrentConfiguration(
            self._configured.current, Configured(base_of(settings))
        )
        self.cluster_data = SharedClusterData(
            {n: f.current for n, f in self.data.items()}
        )
        live = live_ports(
            settings,
            self.cluster_data,
            self._kinds,
            self._queries.add,
            PageRecords(self.recorder, loop).error,
        )
        self.view = live.view if live else None
        self.live_namespaces = live.namespaces if live else None
        self.top_kind = live.top_kind if live else built_in_kind
        served = served_images(
            settings,
            places.images,
            live.read_secret if live else None,
            self._image_cache.add,
            self._registry_calls.add,
            self._verifications.add,
            read_key_secret=live.read_key_secret if live else None,
        )
        ports = ClusterData(
            config_maps=live.config_maps if live else self.cluster_data,
            api_calls=live.api_calls if live else self.cluster_data,
            # Canned image data is for standalone mode.
            images=served.data if live else self.cluster_data,
            reviewed_images=served.begin,
            manifests=(
                served.manifests.with_dry_runs(live.dry_runs)
                if live
                else served.manifests
            ),
            global_context=self.cluster_data,
            namespaces=self.cluster_data,
            namespace_objects=live.namespaces if live else None,
            objects=live.objects if live else None,
            scopes=live.scopes if live else None,
            authority=live.authority if live else None,
            random_bytes=os.urandom,
            resolve_host=Lookups(resolve_host).soon,
            settings=self.configuration.rule_settings,
            cel=CelPorts(references=self.cluster_data, namespaces=self.cluster_data)
            if live is None
            else live.cel._replace(
                images=served.metadata, own_images=served.own_metadata
            ),
        )
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
        engine = Engine(ports, clock, threading.Lock())
        self.policies = Follower(
            places.snapshot,
            control,
            POLICIES,
            lambda segment, previous: self._wrap_policies(engine, segment, previous),
            on_refused=self._refused,
            defer=self._defer,
        )
        self.cel_policies = Follower(
            places.snapshot,
            control,
            CEL_POLICIES,
            lambda segment, _previous: self._wrap_cel_policies(engine, segment),
            on_refused=self._refused,
        )

        self.mutating_policies = Follower(
            places.snapshot,
            control,
            MUTATING_POLICIES,
            lambda segment, _previous: self._wrap_mutating_policies(
                engine, segment, background_user(settings)
            ),
            on_refused=self._refused,
        )

        self.generating_policies = Follower(
            places.snapshot,
            control,
            GENERATING_POLICIES,
            lambda segment, _previous: self._wrap_generating_policies(
                engine, segment, background_user(settings)
            ),
            on_refused=self._refused,
        )

        self.image_policies = Follower(
            places.snapshot,
            control,
            IMAGE_POLICIES,
            lambda segment, _previous: self._wrap_image_policies(
                engine, segment, served.policies
            ),
            on_refused=self._refused,
        )

    def _kinds(self) -> Json | None:
        """Return the discovery rows that the leader published."""
        segment = self.data[KINDS].current()
        return None if segment is None else segment.get(KINDS)

    def planner(self) -> ValidationPlanner | None:
        """Return the planner of the newest generation, None while data is missing."""
        linked = self.policies.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def mutations(self) -> MutationPlanner | None:
        """Return the planner for mutations, None while data is missing."""
        linked = self.policies.current()
        return linked.mutations if linked is not None and self._is_whole() else None

    def cel_planner(self) -> CelPlanner | None:
        """Return the planner of policies in CEL, None while data is missing."""
        linked = self.cel_policies.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def mutating_planner(self) -> MutatingPlanner | None:
        """Return the planner of MutatingPolicies, None while data is missing."""
        linked = self.mutating_policies.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def generating_planner(self) -> GeneratingPlanner | None:
        """Return the planner of GeneratingPolicies, None while data is missing."""
        linked = self.generating_policies.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def image_planner(self) -> ImagePlanner | None:
        """Return the planner of ImageValidatingPolicies, None while data is missing."""
        linked = self.image_policies.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def _is_whole(self) -> bool:
        """Return whether each segment that policies need was attached once.

        The leader publishes them before the policies, but a file can be damaged.
        """
        if not self._whole:
            self._whole = self._configured.current() is not None and all(
                self.data[name].current() is not None for name in _NEEDED
            )
        return self._whole

    def knows(self, key: str) -> bool:
        """Return whether a policy exists, or existed at the last request for it.

        A deleted policy can stay registered a little longer, but denies nothing.
        """
        linked, asked = self.policies.current(), self._asked_policies
        return _knows(None if linked is None else linked.segment, asked, key)

    def knows_cel(self, key: str) -> bool:
        """Return whether a policy in CEL exists, or existed at the last request."""
        linked, asked = self.cel_policies.current(), self._asked_cel_policies
        return _knows(None if linked is None else linked.segment, asked, key)

    def knows_mutating(self, key: str) -> bool:
        """Return whether a MutatingPolicy exists, or existed at the last request."""
        linked, asked = self.mutating_policies.current(), self._asked_mutating_policies
        return _knows(None if linked is None else linked.segment, asked, key)

    def knows_generating(self, key: str) -> bool:
        """Return whether a GeneratingPolicy exists, or existed at the last request."""
        linked = self.generating_policies.current()
        segment = None if linked is None else linked.segment
        return _knows(segment, self._asked_generating_policies, key)

    def knows_images(self, key: str) -> bool:
        """Return whether an image policy exists, or existed at the last request."""
        linked = self.image_policies.current()
        segment = None if linked is None else linked.segment
        return _knows(segment, self._asked_image_policies, key)

    def sink(self, records: PageRecords) -> AuditSink:
        """Return the sink for the results of reviews."""
        if self.journal is None:
            return LogSink(records, self._loop)
        configuration = self.configuration
        telling = EventOptions(
            records_successes=lambda: (
                configuration.compiled().configured.configuration.generate_success_events
            ),
            now_ns=time.time_ns,
        )
        return JournalSink(self.journal, records, self._loop, telling)

    def result_sink(self, records: PageRecords) -> ResultSink | None:
        """Return the sink for results for reports, None if no reports pool runs."""
        if self.results is None or self._reporting is None:
            return None
        return ResultSink(self.results, records, self._reporting, time.time_ns)

    def _count_as_configured(self) -> None:
        """Apply the operator's metric options; call it only in the loop's thread."""
        metrics = self.configuration.compiled().configured.metrics
        if metrics is not self._counted_by:
            self._counted_by = metrics
            self.recorder.configure(metrics)
        for family, tally in (
            (QUERIES, self._queries),
            (IMAGE_CACHE, self._image_cache),
            (REGISTRY_CALLS, self._registry_calls),
        ):
            for labels, count in tally.drain().items():
                self.recorder.series(family).count(labels, float(count))
        for labels, seconds in self._verifications.drain():
            self.recorder.series(IMAGE_VERIFICATIONS).observe(labels, seconds)
        for generation, seconds in self._pauses.drain():
            self.recorder.series(GC_PAUSES).observe((generation,), seconds)
        if self.recording is not None:
            for labels, count in self.recording.drain().items():
                self.recorder.series(RECORDED_REVIEWS).count(labels, float(count))
            for labels, count in self._deleted.drain().items():
                self.recorder.series(RECORDING_FILES_DELETED).count(
                    labels, float(count)
                )
        interval_s = metrics.refresh_interval_s
        if interval_s and self._loop.time() - self._counted_since_s > interval_s:
            self._counted_since_s = self._loop.time()
            self.recorder.reset()

    def listen(self) -> None:
        """Check for new generations when the bell rings, and periodically."""
        try:
            bell = Bell.of_worker(self._directory, os.getpid())
        except (OSError, SnapshotUnusable) as error:
            _LOG.warning("no notifications from the leader, polling instead: %s", error)
        else:
            self._loop.add_reader(bell.fileno(), self._on_bell, bell)
        self._poll()

    def _on_bell(self, bell: Bell) -> None:
        # Clear before the check, so that a ring during the check is noticed.
        bell.clear()
        self._follow()

    def _poll(self) -> None:
        self._follow()
        self._count_as_configured()
        self._loop.call_later(self._poll_s, self._poll)

    def _follow(self) -> None:
        for _, follower in self._followers():
            follower.current()
        self._report_state()

    def tick(self, gauges: Gauges) -> None:
        """Write this worker's state to the page; retry rejected generations."""
        page = self.page
        page.set_fact("heartbeat_ns", time.monotonic_ns())
        page.set_fact("generation", self.policies.generation)
        linked = self.policies.current()
        if linked is not None:
            page.set_fact("linked_rules", linked.segment.decoded_count)
        if self.journal is not None:
            page.set_fact("events_queue_depth", self.journal.waiting)
            page.set_fact("events_queue_dropped", self.journal.dropped)
        for name in FACTS:
            if hasattr(gauges, name):
                page.set_fact(name, getattr(gauges, name))
        for name, follower in self._followers():
            if self._control.generation(name) <= follower.generation:
                continue
            if follower is not self.policies or follower.current() is None:
                follower.refresh()
            elif self._is_idle():
                self._defer(follower.refresh)
        if self._collector.has_replaced and self._is_idle():
            self._defer(self._collector.release)
        self._collector.tick(
            self._loop.time(),
            gauges.connections_ended,
            gauges.bytes_freed,
            linked and (linked.segment.generation, linked.segment.decoded_count),
        )

    def _is_idle(self) -> bool:
        """Return whether the attaching thread is idle."""
        return self._attaching is None or self._attaching.done()

    def _report_state(self) -> None:
        served = []
        for name, follower in self._followers():
            serves = name != POLICIES or self._is_whole()
            served.append(follower.generation if serves else 0)
            self.slot.serve(name, served[-1])
        if served != self._served_last:
            # The leader waits for this report before it sets policies Ready.
            self._served_last = served
            ring(self._directory, LEADER)

    def _followers(self) -> list[tuple[str, Follower[Any]]]:
        return [
            (POLICIES, self.policies),
            # After the policies, because the leader publishes the other segments first.
            (CEL_POLICIES, self.cel_policies),
            (MUTATING_POLICIES, self.mutating_policies),
            (GENERATING_POLICIES, self.generating_policies),
            (IMAGE_POLICIES, self.image_policies),
            (SETTINGS, self._configured),
            *self.data.items(),
        ]

    def _wrap_policies(
        self, engine: Engine, segment: Segment, previous: _LinkedSnapshot | None
    ) -> _LinkedSnapshot:
        policies = PolicySegment(segment)
        source: SegmentSource[LinkedRule] = SegmentSource(policies, link_rule)
        if previous is not None:
            # Release the rules of earlier snapshots, so that consecutive changes do not
            # keep them all.
            self._collector.release()
            self._link_beforehand(source, previous)
            linked = previous.source.linked(), previous.mutating.linked()
            self._collector.note(chain(*linked))
        self.recorder.forget_bundle_keys()
        mutating = SegmentSource(policies, link_mutation)
        return _LinkedSnapshot(
            policies,
            source,
            mutating,
            ValidationPlanner(engine, source, self._background_user, self._reporting),
            MutationPlanner(engine, mutating),
        )

    def _wrap_cel_policies(
        self, engine: Engine, segment: Segment
    ) -> _LinkedCelPolicies:
        policies = CelPolicySegment(segment)
        source = CelPolicySource(engine, policies)
        return _LinkedCelPolicies(policies, CelPlanner(engine, source, self.knows_cel))

    def _wrap_mutating_policies(
        self, engine: Engine, segment: Segment, user: str
    ) -> _LinkedMutatingPolicies:
        policies = MutatingPolicySegment(segment)
        source = CelSource(
            engine,
            policies,
            lambda position: LinkedMutatingPolicy(policies.mutating_policy(position)),
        )
        return _LinkedMutatingPolicies(
            policies, MutatingPlanner(engine, source, self.knows_mutating, user)
        )

    def _wrap_generating_policies(
        self, engine: Engine, segment: Segment, background_user: str
    ) -> _LinkedGeneratingPolicies:
        policies = GeneratingPolicySegment(segment)
        source = CelSource(
            engine,
            policies,
            lambda at: LinkedGeneratingTrigger(policies.generating_policy(at)),
        )
        planner = GeneratingPlanner(source, self.knows_generating, background_user)
        return _LinkedGeneratingPolicies(policies, planner)

    def _wrap_image_policies(
        self, engine: Engine, segment: Segment, begin: Begin
    ) -> _LinkedImagePolicies:
        policies = ImagePolicySegment(segment)
        source = CelSource(
            engine, policies, lambda at: LinkedImagePolicy(policies.image_policy(at))
        )
        planner = ImagePlanner(engine, source, self.knows_images, begin)
        return _LinkedImagePolicies(policies, planner)

    def _link_beforehand(
        self, source: SegmentSource[LinkedRule], previous: _LinkedSnapshot
    ) -> None:
        """Link the recently used rules before the swap, so that no request waits.

        If a rule cannot be linked, its policy's failurePolicy decides about the
        requests that need it. It must not prevent other policies from coming into
        force.
        """
        try:
            source.prelink(previous.source.hot_kinds())
        except Exception:  # noqa: BLE001 - logged here; each request reports it again
            self._count_error("webhook.defect")
            _LOG.exception("internal error while linking rules")

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
        _LOG.error("snapshot refused: %s", error.message)

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
        evaluate = SnapshotEvaluate(attached.planner, attached.knows)
        records = PageRecords(attached.recorder, loop)
        served = wire(
            settings,
            loop,
            RoleDependencies(
                evaluate=evaluate,
                is_ready=evaluate.is_ready,
                records=with_decisions(records, settings.log_decisions),
                view=attached.view,
                sink=attached.sink(records),
                triggers=_trigger_sink(attached, records),
                results=attached.result_sink(records),
                background_user=background_user(settings),
                recording=attached.recording,
                tick=attached.tick,
                roles=attached.cluster_data,
                namespaces=attached.cluster_data,
                live_namespaces=attached.live_namespaces,
                mutate=SnapshotMutate(attached.mutations, attached.knows),
                cel=attached.cel_planner,
                cel_mutate=attached.mutating_planner,
                cel_generate=attached.generating_planner,
                cel_images=attached.image_planner,
                filters=attached.configuration,
                top_kind=attached.top_kind,
                certificates=Certificates(places.cert, places.key),
                peers=attached.slot,
            ),
        )
        attached.listen()
        return served

    return start


def _knows(segment: PolicySegment | None, asked: set[str], key: str) -> bool:
    if segment is not None and segment.knows(key):
        if len(asked) >= FINE_GRAINED_KEPT_MAX:
            asked.clear()
        asked.add(key)
    return key in asked


def _journal(settings: Settings, places: Places, recorder: Recorder) -> Journal | None:
    """Return this worker's journal; None without events or without free space."""
    if places.journals is None or settings.events_queued_max == 0:
        return None
    try:
        return Journal.claim(places.journals, settings.events_queued_max)
    except StateError as error:
        recorder.errors.count((error.code,))
        _LOG.error("this worker writes no events: %s", error.message)
        return None


def _trigger_sink(attached: _Attached, records: PageRecords) -> TriggerSink | None:
    if attached.triggers is None:
        return None
    journal, lost = attached.triggers
    policies = LostPolicies(lost, records, time.time_ns)
    return TriggerSink(journal, records, time.time_ns, policies)


def _trigger_journals(
    places: Places, recorder: Recorder
) -> tuple[Journal, Journal] | None:
    """Return this worker's journals of triggers, and of policies that lost some.

    None without a background pool. Raises: StateError without free space, because a
    worker that answers without recording would lose every trigger.
    """
    if places.triggers is None or places.lost is None:
        return None
    try:
        return (
            Journal.claim(places.triggers, TRIGGERS_WAITING_MAX, TRIGGERS.ring_bytes),
            Journal.claim(places.lost, TRIGGERS_WAITING_MAX, LOST.ring_bytes),
        )
    except StateError as error:
        recorder.errors.count((error.code,))
        raise


def _result_journal(places: Places, recorder: Recorder) -> Journal | None:
    """Return this worker's journal of results, None without a reports pool.

    Raises: StateError without free space, as for triggers.
    """
    if places.results is None:
        return None
    try:
        return Journal.claim(places.results, RESULTS_WAITING_MAX, RESULTS.ring_bytes)
    except StateError as error:
        recorder.errors.count((error.code,))
        raise


def background_user(settings: Settings) -> str:
    """Return the user name of the background pool."""
    return settings.background_service_account or (
        f"system:serviceaccount:{settings.namespace}:kyverno-background-controller"
    )


def _wrap_configured(segment: Segment, _previous: Compiled | None) -> Compiled:
    return Compiled(configured_of(DataSegment(segment)))


def _wrap_data(segment: Segment, _previous: DataSegment | None) -> DataSegment:
    return DataSegment(segment)
