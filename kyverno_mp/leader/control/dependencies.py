"""Define the inputs that the leader's controllers share.

Room: leader. Takes: nothing. Gives: ReplicaContext, Followed, Dependencies. Next:
leader/control/{build,wire,run}.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kyverno_mp.controllers.certificates.reconcile import CertificateSecrets
from kyverno_mp.controllers.replicas import Replicas
from kyverno_mp.controllers.rollout_states import NAME as ROLLOUTS
from kyverno_mp.controllers.rollout_states import Stored, stored_of
from kyverno_mp.controllers.webhook_config.owner import WatchedOwner
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.followed import FollowedObjects
from kyverno_mp.kube.lease import Election
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader.callers import PublishedCallers
from kyverno_mp.leader.cluster import LivePolicies
from kyverno_mp.leader.configuration import ClusterConfiguration
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.leader.control import keys
from kyverno_mp.leader.control.event_recorder import EventRecorder
from kyverno_mp.leader.control.metrics import LeaderMetrics
from kyverno_mp.leader.denials import DenialCounter
from kyverno_mp.leader.rollouts import PublishedRollouts
from kyverno_mp.leader.status import StatusReader
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Request
from kyverno_mp.queues.work_queue import WorkQueue
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """The environment of this replica: its settings, its folders and its clock."""

    settings: Settings
    runtime_dir: Path
    status: StatusReader
    page: ControlPage
    serve_with: Callable[[CertificateSecrets], None]
    """Called with each new certificate and key to serve."""
    clock: Clock = field(default_factory=Clock)
    callers: PublishedCallers = field(default_factory=PublishedCallers)
    rollouts: PublishedRollouts = field(default_factory=PublishedRollouts)


@dataclass(frozen=True, slots=True)
class Followed:
    """The cluster objects that the leader watches, shared with controllers."""

    client: Client
    policies: LivePolicies
    configuration: ClusterConfiguration
    context: ClusterGlobalContext
    metrics: LeaderMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of the controllers; one thread runs them, without locks."""

    replica: ReplicaContext
    followed: Followed
    election: Election
    recorder: EventRecorder
    queue: WorkQueue[Request]
    objects: FollowedObjects
    discovery: Discovery
    replicas: Replicas
    owner: WatchedOwner
    own: Mapping[str, Informer[bytes]]
    """The informers of our webhook configurations, by the plural name of the resource;
    each caches the path segments of the configuration's webhooks."""
    rollouts: Informer[Stored]
    denials: DenialCounter

    def add(self, request: Request) -> None:
        """Let a controller reconcile a key; ignored in a pod without it."""
        runs_all = self.replica.settings.runs_webhook
        if runs_all or request.controller in keys.WITHOUT_WEBHOOK:
            self.queue.add(request)

    @property
    def rollouts_key(self) -> Key:
        """Return the key of the ConfigMap that stores rollouts."""
        return self.replica.settings.namespace, ROLLOUTS

    def stored_rollouts(self) -> Stored | None:
        """Return the stored rollouts, None while they are unknown."""
        return stored_of(self.rollouts, self.rollouts_key)

    @property
    def guarded(self) -> Objects:
        """Write operations that are allowed only on the lease holder."""
        return self.objects.guarded(self.election.guard)
