"""Run the leader of a pod in a cluster: start threads, publish, stop in order.

Room: leader. Takes: Settings, the runtime folder. Gives: nothing; ends at SIGTERM.
Next: leader/loop.py publishes, leader/control/wire.py wires the controllers.
May touch: threads, signals, the API server.
Source: docs/architecture.md 2 (small controllers in the leader process).

In a pod without a webhook the leader publishes the data that the pools read. It holds
no lease, and writes nothing to the API server.

The threads, and what each writes:
    main         the loop: snapshots, status.json; adds keys
    informer-*   its cache; adds keys
    lease        the election's fence
    controllers  everything that reconcilers write, one key at a time
    bell         adds keys when a worker has attached a segment
    events       Events, from their own queue
    denials      the counts of denials by gradual enforcement, in one key of a ConfigMap
    triggers     UpdateRequests, from the workers' journals; with a background pool
    results      EphemeralReports, from the workers' journals; with a reports pool
    shutdown     deregisters the last replica after the other threads have ended
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kyverno_mp import __version__
from kyverno_mp.controllers.certificates.reconcile import CertificateSecrets
from kyverno_mp.controllers.deregister import deregister
from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.egress.clients import open_calls
from kyverno_mp.egress.kinds import LiveKinds, published_rows
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import ADMISSION_ACCOUNT
from kyverno_mp.leader import loop
from kyverno_mp.leader.authors import AuthorWatch
from kyverno_mp.leader.cluster import LiveClusterData, LivePolicies
from kyverno_mp.leader.configuration import ClusterConfiguration, last_published
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.leader.control import shutdown
from kyverno_mp.leader.control.dependencies import Followed, ReplicaContext
from kyverno_mp.leader.control.event_recorder import EventRecorder
from kyverno_mp.leader.control.metrics import LeaderMetrics
from kyverno_mp.leader.control.wire import Wired
from kyverno_mp.leader.documents.outcomes import Helpers
from kyverno_mp.leader.documents.source_room import SourceRoom
from kyverno_mp.leader.results.reports import EphemeralPair
from kyverno_mp.leader.results.writer import ResultWriter
from kyverno_mp.leader.sources import Sources
from kyverno_mp.leader.status import StatusReader
from kyverno_mp.leader.triggers.left import mark_pending
from kyverno_mp.leader.triggers.writer import TriggerWriter
from kyverno_mp.limits import OTLP_FLUSH_S_MAX, SOURCES_MEMORY_DIVISOR
from kyverno_mp.queues.journal import LOST, RESULTS, TRIGGERS, JournalReader
from kyverno_mp.queues.signals import await_signal
from kyverno_mp.results.records import reporting_of
from kyverno_mp.settings.machine import memory_limit
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import LEADER, new_bell
from kyverno_mp.snapshot.bell import RESULTS as RESULTS_BELL
from kyverno_mp.snapshot.bell import TRIGGERS as TRIGGERS_BELL
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.families import LEASE_HELD, SPANS
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tracing import start_tracing

_log = logging.getLogger(__name__)
USER_AGENT: Final = f"kyverno-mp/{__version__}"
LEASE: Final = "kyverno"
_INTERNAL_ERROR_EXIT: Final = 70
_STOP_S: Final = 10.0
_LAST_CALL_S: Final = 2.0
"""Time for a call after which the pod ends."""
_DEREGISTER_STEP_S: Final = 4.0
"""A running reconcile can take this long before the shutdown continues without it."""
_BELL_S: Final = 1.0


def run_leader(
    settings: Settings,
    runtime_dir: Path,
    serve_with: Callable[[CertificateSecrets], None],
    helpers: Helpers | None = None,
) -> None:
    """Run the leader until SIGTERM.

    ``serve_with`` replaces the certificate of the workers. ``helpers`` compile the
    first policies.
    """
    threading.excepthook = _end_with
    # Threads inherit the signal mask: only the leader's loop receives signals, except
    # the shutdown request, which has its own thread.
    signal.pthread_sigmask(
        signal.SIG_BLOCK,
        {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, shutdown.SIGNAL},
    )
    client = Client(Pool(access_of(settings.kubeconfig, environment())), USER_AGENT)
    followed = _followed(settings, runtime_dir, client)
    policies, context = followed.policies, followed.context
    status = StatusReader(runtime_dir)
    leader = ClusterLeader(
        ReplicaContext(
            settings=settings,
            runtime_dir=runtime_dir,
            status=status,
            page=ControlPage.open(runtime_dir / loop.SNAPSHOT),
            serve_with=serve_with,
        ),
        followed,
    )
    cluster_data = LiveClusterData(
        client,
        context,
        lambda: leader.wired.discovery.directory,
        config_maps=settings.config_map_caching,
        reviews=settings.runs_webhook,
        callers=leader.callers if settings.runs_webhook else None,
        rollouts=leader.rollouts if settings.runs_webhook else None,
    )
    authors = AuthorWatch(
        policies.of_tenants,
        LiveKinds(published_rows(lambda: leader.wired.discovery.directory), client),
        LivePermissions(client, settings.namespace),
    )
    sources = _sources(leader, followed, cluster_data, authors, status)
    for informer in followed.metrics.informers:
        informer.start()
    if settings.check_policy_authors:
        authors.start()
    start_tracing(settings, LEADER)
    leader.start()
    try:
        loop.run(settings, runtime_dir, sources, leader.gauges, leader.count, helpers)
    finally:
        authors.stop()
        leader.stop()
        traces.finish(OTLP_FLUSH_S_MAX)
        context.stop()
        for informer in followed.metrics.informers:
            informer.stop()


def _followed(settings: Settings, runtime_dir: Path, client: Client) -> Followed:
    """Return what the leader follows in the cluster; nothing is started."""
    policies = LivePolicies(
        client,
        watched=settings.needs_policies,
        room=SourceRoom(memory_limit() // SOURCES_MEMORY_DIVISOR),
    )
    context = ClusterGlobalContext(
        client,
        open_calls(settings, client).fetch,
        settings.global_context_entries_max,
    )
    last = last_published(runtime_dir / loop.SNAPSHOT)
    configuration = ClusterConfiguration(client, settings, last)
    metrics = LeaderMetrics(client, settings.service_account_name or ADMISSION_ACCOUNT)
    return Followed(client, policies, configuration, context, metrics)


def _sources(
    leader: "ClusterLeader",
    followed: Followed,
    cluster_data: LiveClusterData,
    authors: AuthorWatch,
    status: StatusReader,
) -> Sources:
    """Return the loop's inputs, complete once all their informers are."""
    policies, context = followed.policies, followed.context
    configuration = followed.configuration
    informers: list[Informer[Any]] = [
        *policies.informers,
        *cluster_data.informers,
        *configuration.informers,
    ]
    followed.metrics.informers = [
        *informers,
        context.informer,
        *policies.cel_informers,
    ]
    return Sources(
        policies,
        cluster_data,
        configuration,
        lambda: (
            all(informer.synced for informer in informers)
            and policies.is_complete
            and context.is_settled
            and leader.is_set
        ),
        leader.published,
        lambda wake: _wake_on_change(
            wake,
            (policies, cluster_data, authors),
            # Of the entries themselves; their data can change all the time.
            (*configuration.informers, context.informer),
        ),
        status.tell,
        lambda: authors.lost,
        lambda: context.has_entries,
    )


class ClusterLeader:
    """The threads besides the leader's loop: the lease, the controllers, the Events."""

    def __init__(self, replica: ReplicaContext, followed: Followed) -> None:
        settings, client = replica.settings, followed.client
        self._settings = settings
        self._runtime_dir = replica.runtime_dir
        self.callers, self.rollouts = replica.callers, replica.rollouts
        self._client = client
        terms = Terms(
            namespace=settings.namespace,
            name=LEASE,
            identity=settings.pod_name or socket.gethostname(),
            retry_s=settings.lease_retry_s,
        )
        self._last_calls = client.within(_LAST_CALL_S)
        election = Election.watching(client, terms)
        self._recorder = EventRecorder(
            settings,
            replica.runtime_dir,
            Objects(client),
            lambda: followed.configuration.current.configuration,
            followed.policies.exception,
        )
        self.wired = Wired(replica, followed, election, self._recorder, terms.identity)
        snapshot = replica.runtime_dir / loop.SNAPSHOT
        self._triggers = (
            TriggerWriter(
                [
                    JournalReader(channel.folder(replica.runtime_dir))
                    for channel in (TRIGGERS, LOST)
                ],
                client,
                settings.namespace,
                lambda: (
                    followed.configuration.current.configuration.update_request_threshold
                ),
                bell=lambda: new_bell(snapshot, TRIGGERS_BELL),
            )
            if settings.runs_webhook and settings.has_background_pool
            else None
        )
        self._results = (
            ResultWriter(
                JournalReader(RESULTS.folder(replica.runtime_dir)),
                EphemeralPair(client, settings.namespace, terms.identity),
                bell=lambda: new_bell(snapshot, RESULTS_BELL),
            )
            if reporting_of(settings) is not None
            else None
        )
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self.wired.controllers.work, name="controllers"),
        ]
        if settings.runs_webhook:
            self._threads.append(threading.Thread(target=election.run, name="lease"))
        self._election = election
        self._metrics = followed.metrics

    @property
    def is_set(self) -> bool:
        """Whether what the controllers publish to workers, if any, is known."""
        is_known = self.callers.is_set and self.rollouts.is_set
        return is_known or not self._settings.runs_webhook

    def start(self) -> None:
        """Start the threads."""
        for informer in self.wired.informers:
            informer.start()
        for thread in self._threads:
            thread.start()
        threads = [("shutdown", self._await_shutdown)]
        if self._results is not None:
            self._results.start()
        if self._settings.runs_webhook:
            self._recorder.start()
            self.wired.denials.start()
            if self._triggers is not None:
                self._triggers.start()
            threads.append(("bell", self._watch_workers))
        for name, target in threads:
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop the threads; release the lease."""
        self._end_writing(_STOP_S)
        for informer in self.wired.informers:
            informer.stop()
        if self._results is not None:
            self._results.stop()
        if self._settings.runs_webhook:
            self._recorder.stop()
            self.wired.denials.stop()
            if self._triggers is not None:
                self._triggers.stop()
                mark_pending(self._last_calls, self._settings.namespace)

    def published(self, generation: int) -> None:
        """Record the generation of the last poll, and that its data is published."""
        self.callers.published()
        self.wired.published(generation)

    def gauges(self) -> Mapping[str, int]:
        """Return the gauges of the leader's page about its queues."""
        return {**self._recorder.gauges(), **self.wired.gauges()}

    def count(self, recorder: Recorder) -> None:
        """Write the counts of all threads; called in the page's writer thread."""
        self._metrics.write(recorder)
        for labels, count in traces.counts().items():
            recorder.series(SPANS).count(labels, float(count))
        if self._triggers is not None:
            self._triggers.count(recorder)
        if self._results is not None:
            self._results.count(recorder)
        if self._settings.runs_webhook:
            is_held = float(self._election.holds())
            recorder.series(LEASE_HELD).hold((LEASE,), is_held)
            self.wired.denials.count(recorder)

    def _end_writing(self, within_s: float) -> None:
        self._stopping.set()
        self._election.stop()
        self.wired.queue.shut_down(drain=False)
        for thread in self._threads:
            thread.join(timeout=within_s)

    def _await_shutdown(self) -> None:
        """Deregister when the supervisor requests it; afterwards write nothing."""
        await_signal({shutdown.SIGNAL})
        self._end_writing(_DEREGISTER_STEP_S)
        settings = self._settings
        if settings.runs_webhook:
            self.wired.replicas.leave()
        if settings.runs_webhook and settings.deployment_name:
            deregister(self._client, settings.namespace, settings.deployment_name)
        shutdown.mark(self._runtime_dir, LEADER)

    def _watch_workers(self) -> None:
        """Start a reconcile when a worker has attached a segment."""
        bell = new_bell(self._runtime_dir / loop.SNAPSHOT, LEADER)
        if bell is None:
            return
        while not self._stopping.is_set():
            if bell.wait(_BELL_S):
                bell.clear()
                self.wired.attached()
        bell.remove()


def _end_with(failed: threading.ExceptHookArgs) -> None:
    """End this process after an unexpected error; the supervisor restarts it.

    Without its lease or its informers, the leader would look healthy but do nothing.
    The workers continue with the last publication. An unexpected exception in one
    reconcile ends no thread (queues/reconcile.py).
    """
    name = failed.thread.name if failed.thread else "?"
    error = failed.exc_value or failed.exc_type()
    _log.critical("thread %s failed", name, exc_info=error)
    os._exit(_INTERNAL_ERROR_EXIT)


def _wake_on_change(
    wake: Callable[[], None],
    sources: Iterable[LivePolicies | LiveClusterData | AuthorWatch],
    informers: Iterable[Informer[Any]],
) -> None:
    for source in sources:
        source.on_change(wake)
    for informer in informers:
        informer.on_change(lambda _key: wake())
