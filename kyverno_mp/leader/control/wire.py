"""Wire the leader's controllers: events add keys, and controllers reconcile them.

Room: leader. Takes: Settings, a Client, the leader's informers. Gives: Wired: the
queue, the controllers, the informers that only they need.
Next: leader/control/run.py runs them. May touch: nothing before that.
Source: docs/architecture.md 2 (small controllers in the leader process);
docs/behaviour/controllers 8.

    event                                      adds the key
    policies changed                           webhooks: policies
    the operator's ConfigMap changed           webhooks: configuration
    a configuration of ours changed            webhooks: its name; callers
    the authority changed or became usable     webhooks: all; leader health
    a Secret or the Deployment of ours changed certificates; callers
    CRDs changed                               discovery: its CRDs
    the served resources changed               webhooks: all
    webhooks were registered                   policy statuses; generated policies
    exceptions changed                         generated policies; exceptions
    a generated policy changed in a status     policy statuses
    a generation was published                 webhooks: refused; as when attached
    a worker attached a generation             policy statuses; replicas; callers
    another replica enforces other versions    policy statuses
    the state of a rollout changed             rollouts
    a budget of denials is exceeded            rollouts
    an entry became readable or unreadable     global context entries

Each key is also added periodically, so a missed event only causes a delay. In a pod
without a webhook, only discovery and leader health have a controller.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kyverno_mp.controllers import rollout_states
from kyverno_mp.controllers.certificates.reconcile import SECRETS
from kyverno_mp.controllers.deregister import DEPLOYMENTS
from kyverno_mp.controllers.replicas import Replicas, scope_of
from kyverno_mp.controllers.webhook_config.callers import segments_in
from kyverno_mp.controllers.webhook_config.options import MANAGED_BY, MANAGER
from kyverno_mp.controllers.webhook_config.owner import WatchedOwner
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.followed import FollowedObjects
from kyverno_mp.kube.lease import Election
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.control import keys
from kyverno_mp.leader.control.build import build
from kyverno_mp.leader.control.dependencies import (
    Dependencies,
    Followed,
    ReplicaContext,
)
from kyverno_mp.leader.control.event_recorder import EventRecorder
from kyverno_mp.leader.control.options import (
    caller_path_rules,
    certificate_rules,
    webhook_options,
)
from kyverno_mp.leader.denials import DenialCounter
from kyverno_mp.leader.denials import Inputs as DenialInputs
from kyverno_mp.leader.loop import SNAPSHOT
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.queues.journal import DENIALS, JournalReader
from kyverno_mp.queues.reconcile import Controllers, Request
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import DENIALS as DENIALS_BELL
from kyverno_mp.snapshot.bell import new_bell, ring

_DEPTH_MAX: Final = 256
"""About a dozen fixed keys, and one for each configuration with our label."""
_BACKOFF: Final = Backoff(least_s=0.1, most_s=1.0)
"""Short, because workers attach quickly and the end of an outage causes no event."""
_CRDS: Final = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    namespaced=False,
)


class Wired:
    """The controllers of one leader, which run once their threads start."""

    def __init__(
        self,
        replica: ReplicaContext,
        followed: Followed,
        election: Election,
        recorder: EventRecorder,
        identity: str,
    ) -> None:
        """``identity``: the name of this replica."""
        clock, client = replica.clock, followed.client
        objects = FollowedObjects(client, _followed_names(replica.settings))
        self._policies = followed.policies
        self.queue: WorkQueue[Request] = WorkQueue(
            depth_max=_DEPTH_MAX, backoff=_BACKOFF, clock_s=clock.monotonic_s
        )
        self.discovery = Discovery(client)
        self.replicas = Replicas(
            objects,
            replica.settings.namespace,
            identity,
            clock.monotonic_ns,
            lambda: self.shared.add(keys.STATUSES),
        )
        key = replica.settings.namespace, rollout_states.NAME
        scope = rollout_states.scope_of(replica.settings.namespace)
        rollouts = Informer(client, scope, rollout_states.stored_in)
        self.denials = DenialCounter(
            JournalReader(DENIALS.folder(replica.runtime_dir)),
            Objects(client),
            (key, identity),
            DenialInputs(
                lambda: rollout_states.stored_of(rollouts, key),
                replica.rollouts,
                lambda: self.shared.add(keys.ROLLOUTS),
                partial(new_bell, replica.runtime_dir / SNAPSHOT, DENIALS_BELL),
            ),
            clock,
        )
        self.shared = shared = Dependencies(
            replica=replica,
            followed=followed,
            election=election,
            recorder=recorder,
            queue=self.queue,
            objects=objects,
            discovery=self.discovery,
            replicas=self.replicas,
            owner=WatchedOwner(client),
            own=_own_configurations(client, replica.settings),
            rollouts=rollouts,
            denials=self.denials,
        )
        metrics = followed.metrics
        self.controllers = Controllers(
            self.queue, build(shared), metrics.reconciled, metrics.unexpected_error
        )
        self.informers = _listen(shared)
        for request in keys.AT_START:
            shared.add(request)

    def published(self, generation: int) -> None:
        """Record the generation that contains all policies of the last poll."""
        before = self._policies.settled
        self._policies.published(generation)
        if self._policies.settled != before:
            self.shared.add(keys.REFUSED_POLICIES)
            self.attached()

    def attached(self) -> None:
        """Check immediately which generations the workers have attached."""
        self.shared.add(keys.STATUSES)
        self.shared.add(keys.REPLICAS)
        self.shared.add(keys.CALLERS)

    def gauges(self) -> Mapping[str, int]:
        """Return the gauges of the leader's page about the queue."""
        return {
            "controllers_queue_depth": self.queue.depth,
            "controllers_queue_dropped": self.queue.dropped,
        }


def _listen(shared: Dependencies) -> list[Informer[Any]]:
    """Let events add keys; return the informers that only controllers need."""
    followed, client = shared.followed, shared.followed.client

    def adds(request: Request) -> Callable[..., None]:
        def add(*_event: object) -> None:
            shared.add(request)

        return add

    def own_changed(plural: str, key: Key) -> None:
        shared.add(keys.configuration_of_ours(plural, key[1]))
        shared.add(keys.CALLERS)

    def ring_denials(*_event: object) -> None:
        ring(shared.replica.runtime_dir / SNAPSHOT, DENIALS_BELL)

    crds = Informer(client, _metadata_of(_CRDS), _drop_content)
    crds.on_change(adds(keys.NEW_KINDS))
    if not shared.replica.settings.runs_webhook:
        return [crds]
    policies = followed.policies
    for informer in policies.policy_informers:
        informer.on_change(adds(keys.CHANGED_POLICIES))
    for exceptions in (*policies.informers[2:], *policies.cel_informers[-1:]):
        exceptions.on_change(adds(keys.GENERATED))
        exceptions.on_change(adds(keys.EXCEPTIONS))
    followed.configuration.on_change(adds(keys.CONFIGURATION))
    for request in keys.OF_HOLDERS:
        shared.election.on_term(adds(request))
    shared.rollouts.on_change(adds(keys.ROLLOUTS))
    shared.rollouts.on_list(adds(keys.ROLLOUTS))
    shared.rollouts.on_change(ring_denials)
    shared.rollouts.on_list(ring_denials)
    followed.context.on_state(adds(keys.ENTRIES))
    for plural, own_informer in shared.own.items():
        own_informer.on_change(partial(own_changed, plural))
    namespace = shared.replica.settings.namespace
    replica_reports = Informer(
        client, scope_of(namespace), shared.replicas.read_reports
    )
    for informer in shared.objects.informers:
        informer.on_change(adds(keys.CERTIFICATES))
        informer.on_change(adds(keys.CALLERS))
    watched: list[Informer[Any]] = [*shared.own.values(), shared.owner.informer]
    watched.append(shared.rollouts)
    return [crds, replica_reports, *watched, *shared.objects.informers]


def _followed_names(settings: Settings) -> list[tuple[Resource, Key]]:
    """Return the objects that controllers read every second."""
    if not settings.runs_webhook:
        return []
    certificates, callers = certificate_rules(settings), caller_path_rules(settings)
    names = [certificates.ca_name, certificates.tls_name]
    followed = [(SECRETS, (certificates.namespace, name)) for name in names]
    if settings.caller_path:
        followed.append((SECRETS, callers.secret))
    if callers.deployment:
        followed.append((DEPLOYMENTS, (callers.secret[0], callers.deployment)))
    return followed


def _own_configurations(
    client: Client, settings: Settings
) -> dict[str, Informer[bytes]]:
    """Return the informers of our configurations, by the plural name of the resource.

    They trigger a reconcile as soon as another client deletes or edits one.
    """
    selector = f"{MANAGED_BY}={MANAGER}"
    options = webhook_options(settings, Configuration(), b"")
    return {
        resource.plural: Informer(
            client,
            WatchScope(resource=resource, label_selector=selector),
            partial(segments_in, options),
        )
        for resource in RESOURCES.values()
    }


def _metadata_of(resource: Resource) -> WatchScope:
    return WatchScope(resource=resource, metadata_only=True)


def _drop_content(_raw: object) -> bytes:
    """Drop the content of an object, because only its existence and version matter."""
    return b""
