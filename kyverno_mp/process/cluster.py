"""Be the leader of a pod in a cluster: informers, lease, certificates, webhooks.

Room: process. Takes: Settings, the runtime folder, the files to serve with. Gives:
nothing; ends with SIGTERM. Next: leader/loop.py publishes, controllers/admission.py
writes to the API server. May touch: threads, the API server, the certificate files.
Source: design.md 2 (small controllers in the leader process); spec/controllers.md 8.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from kyverno_mp import __version__
from kyverno_mp.controllers.admission import AdmissionControllers, Inputs
from kyverno_mp.controllers.certificates.reconcile import Kept
from kyverno_mp.controllers.certificates.rules import Algorithm, CertificateRules
from kyverno_mp.controllers.departure import depart
from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.controllers.global_context_status import GlobalContextStatuses
from kyverno_mp.controllers.policy_status import InForce, PolicyName, Served
from kyverno_mp.controllers.replicas import Replicas, scope_of
from kyverno_mp.controllers.webhook_config.options import (
    MANAGED_BY,
    MANAGER,
    WebhookOptions,
)
from kyverno_mp.controllers.webhook_config.owner import find_owner
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES
from kyverno_mp.controllers.webhook_config.static import admission_configurations
from kyverno_mp.errors import DependencyError, LeaseLost, SnapshotUnusable
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader import loop
from kyverno_mp.leader.cluster import ClusterPolicies, ClusterWorld
from kyverno_mp.leader.configuration import ClusterConfiguration, last_published
from kyverno_mp.leader.global_context_cluster import ClusterGlobalContext
from kyverno_mp.leader.pace import Pace
from kyverno_mp.leader.sources import Sources
from kyverno_mp.leader.status import Status, StatusReader
from kyverno_mp.policy.cluster_policy import AnyPolicy
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.process import leaving
from kyverno_mp.process.certificate import Files
from kyverno_mp.process.events import Telling
from kyverno_mp.process.numbers import LeaderNumbers
from kyverno_mp.process.standing import (
    Standing,
    heard_of_policies,
    read_standing,
    write_standing,
)
from kyverno_mp.reach.doors import open_calls
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import LEADER, Bell
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.telemetry.page import is_running
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
USER_AGENT: Final = f"kyverno-mp/{__version__}"
LEASE: Final = "kyverno"
_DEFECT_EXIT: Final = 70
_ROUND_S: Final = 10.0
_LEAVE_STEP_S: Final = 4.0
"""A round under way may take so long before the leave is taken without it."""
_SETTLE_S: Final = 0.05
"""Changes that come together are computed together."""
_ENTRIES_S: Final = 1.0
"""States of global context entries that change all the time are told this often."""
_ATTACHING_S: Final = 0.1
"""How often it is looked whether all workers have attached what is published, should
nobody ring."""
_BELL_S: Final = 1.0
_HURRIED_S: Final = 3.0
"""Until the workers have attached what changed it is looked so often; after that a
round does it, which looks at everything else as well."""
_NEW_KIND_ROUNDS: Final = 5
"""K8S: a new CRD is served a moment after it is established."""
_SETTLING_ROUNDS: Final = 2
"""After a change it is asked once more: the webhook rules follow what is served."""
_DISCOVERY_ROUNDS: Final = 6
_CRDS: Final = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    namespaced=False,
)


def run_leader(settings: Settings, runtime_dir: Path, files: Files) -> None:
    """Be the leader until SIGTERM."""
    threading.excepthook = _end_with
    # Threads inherit the mask: only the leader's loop fetches signals, and one thread
    # that for taking leave.
    signal.pthread_sigmask(
        signal.SIG_BLOCK,
        {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, leaving.SIGNAL},
    )
    client = Client(Pool(access_of(settings.kubeconfig, environment())), USER_AGENT)
    policies = ClusterPolicies(client)
    context = ClusterGlobalContext(client, open_calls(settings, client).fetch)
    last = last_published(runtime_dir / loop.SNAPSHOT)
    configuration = ClusterConfiguration(client, settings, last)
    numbers = LeaderNumbers(client)
    watched = _Watched(policies, configuration, context, numbers)
    controllers = _Controllers(settings, runtime_dir, files, client, watched)
    world = ClusterWorld(
        client,
        context,
        lambda: controllers.directory,
        config_maps=settings.config_map_caching,
    )
    informers: list[Informer[Any]] = [
        *policies.informers,
        *world.informers,
        *configuration.informers,
    ]
    numbers.informers = [*informers, context.informer]
    for informer in numbers.informers:
        informer.start()
    sources = Sources(
        policies,
        world,
        configuration,
        lambda: all(one.synced for one in informers) and context.is_settled,
        controllers.published,
        lambda wake: _wake_on_change(wake, policies, world),
    )
    controllers.start()
    try:
        loop.run(
            settings, runtime_dir, sources, controllers.telling.facts, numbers.write
        )
    finally:
        controllers.stop()
        context.stop()
        for informer in informers:
            informer.stop()


def _end_with(failed: threading.ExceptHookArgs) -> None:
    """End this process with a thread that a defect ended: it begins anew whole.

    Without its lease or its controllers it would look well and do nothing. The workers
    go on with what was published.
    """
    name = failed.thread.name if failed.thread else "?"
    error = failed.exc_value or failed.exc_type()
    _log.critical("thread %s failed", name, exc_info=error)
    os._exit(_DEFECT_EXIT)


def _wake_on_change(
    wake: Callable[[], None], policies: ClusterPolicies, world: ClusterWorld
) -> None:
    policies.on_change(wake)
    world.on_change(wake)


@dataclass(frozen=True, slots=True)
class _Watched:
    """What the leader follows of the cluster and controllers read, too."""

    policies: ClusterPolicies
    configuration: ClusterConfiguration
    context: ClusterGlobalContext
    numbers: LeaderNumbers


class _Controllers:
    """The threads beside the leader's loop: the lease, and the rounds."""

    def __init__(
        self,
        settings: Settings,
        runtime_dir: Path,
        files: Files,
        client: Client,
        watched: _Watched,
    ) -> None:
        policies, configuration = watched.policies, watched.configuration
        self._files = files
        self._context = watched.context
        self._numbers = watched.numbers
        self._settings = settings
        self._runtime_dir = runtime_dir
        self._client = client
        self._policies = policies
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._round_due = False
        self._entries_moved = False
        self._began_ns = time.monotonic_ns()
        before = read_standing(runtime_dir)
        self._heard_before_ns = before.heard_ns if before else self._began_ns
        self._status = StatusReader(runtime_dir)
        self._policies_moved = True
        self._untold_until_s = 0.0
        self._pace = Pace()
        self._own_moved: deque[tuple[Informer[bytes], Key]] = deque()
        self._new_kinds = 1
        objects = Objects(client)
        terms = Terms(
            namespace=settings.namespace,
            name=LEASE,
            identity=settings.pod_name or socket.gethostname(),
            retry_s=settings.lease_retry_s,
        )
        patient = Objects(client.within(terms.timeout_s))
        self._election = Election(patient, terms)
        self.telling = Telling(
            settings,
            runtime_dir,
            objects,
            lambda: configuration.current.configuration,
            policies.informers[2].get,
        )
        self._entries = GlobalContextStatuses(objects.guarded(self._election.guard))
        self._entry_events = GlobalContextEvents(objects, self.telling.events.tell)
        self._discovery = Discovery(client)
        status = self._status
        self._control = control = ControlPage.open(runtime_dir / loop.SNAPSHOT)
        self._replicas = replicas = Replicas(
            objects, settings.namespace, terms.identity, time.monotonic_ns
        )
        self._admission = AdmissionControllers(
            objects,
            self._election,
            certificate_rules(settings),
            Inputs(
                documents=policies.documents,
                directory=lambda: self._discovery.directory,
                options=lambda ca_bundle: webhook_options(
                    settings, configuration.current.configuration, ca_bundle
                ),
                owner=lambda: find_owner(client),
                static=_answered,
                may_register=lambda: status.read().generation > 0,
                served=lambda: served_by_all(status.read(), control),
                kept=lambda: kept_of(status.read()),
                behind=lambda policy: replicas.behind(*_version(policies, policy)),
                serve_with=self._serve_with,
            ),
        )
        for informer in policies.informers[:2]:
            informer.on_change(self._note_policy)
        configuration.on_change(self._note_configuration)
        self._context.on_state(self._note_entries)
        self._informers = [
            self._watch_crds(client),
            *self._watch_own(client),
            Informer(client, scope_of(settings.namespace), replicas.hear),
        ]
        self._threads = [
            threading.Thread(
                target=self._election.run, args=(self._stopping,), name="lease"
            ),
            threading.Thread(target=self._run, name="controllers"),
        ]

    def start(self) -> None:
        """Start the threads."""
        for informer in self._informers:
            informer.start()
        for thread in self._threads:
            thread.start()
        self.telling.start()
        threading.Thread(target=self._await_leave, name="leave", daemon=True).start()
        threading.Thread(target=self._hear_workers, name="bell", daemon=True).start()

    def stop(self) -> None:
        """End the threads; the lease is given back."""
        self._stopping.set()
        self._wake_round()
        for informer in self._informers:
            informer.stop()
        self.telling.stop()
        for thread in self._threads:
            thread.join(timeout=10)

    def _await_leave(self) -> None:
        """Take leave when the supervisor asks: nothing is written any more after."""
        signal.sigwait({leaving.SIGNAL})
        self._stopping.set()
        self._wake_round()
        for thread in self._threads:
            thread.join(timeout=_LEAVE_STEP_S)
        self._replicas.leave()
        settings = self._settings
        if settings.deployment_name:
            depart(self._client, settings.namespace, settings.deployment_name)
        leaving.mark(self._runtime_dir)

    def _hear_workers(self) -> None:
        """Wake the rounds when a worker attached something."""
        try:
            bell = Bell.create(self._runtime_dir / loop.SNAPSHOT, LEADER)
        except (OSError, SnapshotUnusable) as error:
            _log.warning("no bell, workers are looked at by the clock: %s", error)
            return
        while not self._stopping.is_set():
            if bell.wait(_BELL_S):
                bell.clear()
                self._woken.set()
        bell.remove()

    def published(self, generation: int) -> None:
        """Note with which generation all policies that were looked at are in force."""
        before = self._policies.settled
        self._policies.published(generation)
        if self._policies.settled != before:
            self._woken.set()

    @property
    def directory(self) -> Directory:
        """What the API server serves, empty before it was asked."""
        return self._discovery.directory

    def _tell_entries(self, now: datetime) -> None:
        self._entry_events.look(self._context.states())
        if not self._election.holds():
            self._entries.forget()
            return
        with contextlib.suppress(LeaseLost):
            self._entries.write(self._context.states(), now)

    def _stand(self, now: datetime) -> None:
        """Tell how this pod stands, which decides on its readiness."""
        heard_ns = heard_of_policies(
            (one.heard_ns for one in self._policies.informers),
            publishes=self._status.read().published_ns >= self._began_ns,
            before_ns=self._heard_before_ns,
        )
        failing = self._numbers.failing(time.monotonic_ns())
        standing = Standing(self._admission.is_trusted(now), heard_ns, failing)
        write_standing(self._runtime_dir, standing)

    def _run(self) -> None:
        rounds = 0
        while not self._stopping.is_set():
            self._discover(rounds)
            if self._policies_moved:
                self._policies_moved = False
                self._untold_until_s = time.monotonic() + _HURRIED_S
                self._admission.forget()
            done = self._admission.step(datetime.now(UTC))
            self._numbers.round(done=done)
            self._tell_entries(datetime.now(UTC))
            self._stand(datetime.now(UTC))
            rounds += 1
            soon = self._new_kinds or not done or not self._election.holds()
            self._tell_replicas()
            self._rest(1.0 if soon else _ROUND_S)
            self._stopping.wait(_SETTLE_S)
            self._round_due = False

    def _hurry(self) -> float:
        """Do at once what changed policies need; return how soon to come again.

        A round asks the API server a dozen things; here only what changed is written:
        the webhooks, then, once the workers are as far, the statuses.
        """
        began_s = time.monotonic()
        if self._policies_moved:
            wait_s = self._pace.wait_s(began_s)
            if wait_s > 0:
                return wait_s
            self._policies_moved = False
            self._untold_until_s = began_s + _HURRIED_S
            if not self._admission.register():
                self._admission.forget()
                self._round_due = self._election.holds()
            self._pace.worked(began_s, time.monotonic())
        if self._own_was_touched():
            self._round_due = True
        if self._round_due:
            return 0.0
        if not self._untold_until_s:
            return _ROUND_S
        if self._admission.tell(datetime.now(UTC)):
            self._untold_until_s = 0.0
        elif time.monotonic() > self._untold_until_s:
            self._untold_until_s = 0.0
            self._round_due = True
        return 0.0 if self._round_due else _ATTACHING_S

    def _rest(self, seconds: float) -> None:
        """Wait for the next round; what changes meanwhile is told of."""
        until = time.monotonic() + seconds
        told_s = 0.0
        while not self._round_due:
            now = time.monotonic()
            soon_s = self._hurry()
            if self._entries_moved and now - told_s >= _ENTRIES_S:
                self._entries_moved, told_s = False, now
                self._tell_entries(datetime.now(UTC))
            if now >= until:
                return
            pause_s = min(until - now, soon_s)
            if not self._tell_replicas():
                pause_s = min(pause_s, _ATTACHING_S)
            if self._entries_moved:
                pause_s = min(pause_s, _ENTRIES_S)
            self._woken.wait(pause_s)
            self._woken.clear()

    def _tell_replicas(self) -> bool:
        """Tell what all workers have in force; False while they attach something."""
        versions, generation = self._policies.settled
        if not versions:
            return True
        if not attached_by_all(self._control, generation):
            return False
        return self._replicas.tell(versions)

    def _wake_round(self) -> None:
        self._round_due = True
        self._woken.set()

    def _note_entries(self) -> None:
        self._entries_moved = True
        self._woken.set()

    def _discover(self, rounds: int) -> None:
        # What a silent server serves was left out, or is of before.
        waits = self._new_kinds or self._discovery.stale
        if not waits and rounds % _DISCOVERY_ROUNDS:
            return
        try:
            changed = self._discovery.refresh()
        except DependencyError as error:
            _log.warning("discovery: %s", error.message)
            return
        if changed:
            self._context.hurry()
            # K8S: a server that has just started tells of its CRDs one by one.
            self._new_kinds = max(self._new_kinds, _SETTLING_ROUNDS)
        self._new_kinds = max(0, self._new_kinds - 1)

    def _serve_with(self, kept: Kept) -> None:
        _replace(self._files.key, kept.key)
        _replace(self._files.cert, kept.certificate)
        _log.info("serving with the certificate of the cluster")

    def _note_policy(self, _key: Key) -> None:
        self._policies_moved = True
        self._woken.set()

    def _note_configuration(self) -> None:
        self._policies_moved = True
        self._wake_round()

    def _note_kind(self, _key: Key) -> None:
        self._new_kinds = _NEW_KIND_ROUNDS
        self._wake_round()

    def _note_own(self, informer: Informer[bytes], key: Key) -> None:
        self._own_moved.append((informer, key))
        self._woken.set()

    def _own_was_touched(self) -> bool:
        """Tell whether somebody else changed a configuration of ours.

        What this thread wrote is known by then, whenever the watch told of it.
        """
        touched = False
        while self._own_moved:
            informer, key = self._own_moved.popleft()
            touched = touched or not self._admission.wrote(informer.version_of(key))
        return touched

    def _watch_crds(self, client: Client) -> Informer[bytes]:
        scope = WatchScope(resource=_CRDS, metadata_only=True)
        informer = Informer(client, scope, lambda _: b"")
        informer.on_change(self._note_kind)
        return informer

    def _watch_own(self, client: Client) -> list[Informer[bytes]]:
        """Watch our configurations: who deletes or edits one is answered at once."""
        found = []
        for resource in RESOURCES.values():
            scope = WatchScope(
                resource=resource,
                label_selector=f"{MANAGED_BY}={MANAGER}",
                metadata_only=True,
            )
            informer = Informer(client, scope, lambda _: b"")
            informer.on_change(partial(self._note_own, informer))
            found.append(informer)
        return found


def served_by_all(status: Status, control: ControlPage) -> Served:
    """Return what was published last, once every worker has attached it."""
    if not attached_by_all(control, status.generation):
        return {}
    return {
        (one.kind, one.namespace, one.name): InForce(
            one.ready, one.message, one.generation
        )
        for one in status.policies
    }


def attached_by_all(control: ControlPage, generation: int) -> bool:
    """Tell whether there are workers and each serves a generation of the policies."""
    # A worker that was killed attaches nothing any more.
    control.clear_stale(is_running)
    workers = control.workers()
    return bool(workers) and all(
        worker.generations.get(POLICIES, 0) >= generation for worker in workers
    )


def _version(policies: ClusterPolicies, policy: AnyPolicy) -> tuple[str, int]:
    namespace = policy.metadata.namespace if policy.kind == "Policy" else ""
    return policies.version_of(policy.kind, (namespace, policy.metadata.name))


def kept_of(status: Status) -> dict[PolicyName, str]:
    """Return the versions that are in force in place of refused ones."""
    return {
        (one.kind, one.namespace, one.name): one.in_force
        for one in status.policies
        if one.in_force
    }


def _answered(options: WebhookOptions) -> list[Json]:
    """Return the configurations for what this version answers.

    Its webhook has no words yet on policies.kyverno.io; with failurePolicy Fail nobody
    could create such objects.
    """
    found = []
    for raw in admission_configurations(options):
        for webhook in raw["webhooks"]:
            webhook["rules"] = [
                rule
                for rule in webhook["rules"]
                if rule["apiGroups"] != ["policies.kyverno.io"]
            ]
        if all(webhook["rules"] for webhook in raw["webhooks"]):
            found.append(raw)
    return found


def certificate_rules(settings: Settings) -> CertificateRules:
    """Return the rules that the settings make."""
    return CertificateRules(
        namespace=settings.namespace,
        service=settings.service_name,
        server=settings.server_ip,
        ca_secret=settings.ca_secret_name,
        tls_secret=settings.tls_secret_name,
        algorithm=cast("Algorithm", settings.tls_key_algorithm),
        renew_before=timedelta(hours=settings.certificate_renew_before_h),
    )


def webhook_options(
    settings: Settings, configuration: Configuration, ca_bundle: bytes
) -> WebhookOptions:
    """Return the options that settings and configuration make."""
    return WebhookOptions(
        ca_bundle=ca_bundle,
        namespace=settings.namespace,
        service=settings.service_name,
        service_port=settings.service_port,
        server=settings.server_ip,
        timeout_s=round(settings.webhook_timeout_s),
        force_ignore=settings.force_failure_policy_ignore,
        auto_update=settings.auto_update_webhooks,
        annotations=configuration.webhook_annotations,
        labels=configuration.webhook_labels,
        namespace_selector=configuration.namespace_selector,
        object_selector=configuration.object_selector,
        match_conditions=configuration.match_conditions,
    )


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one step; 0600 by the umask and the mode."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
