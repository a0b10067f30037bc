"""Create the leader's controllers, one function each.

Room: leader. Takes: Parts. Gives: reconcilers by the name of their controller.
Next: leader/control/wire.py. May touch: nothing before a reconcile.
Source: docs/architecture.md 2 (small controllers in the leader process);
docs/behaviour/controllers 8.
"""

from kyverno_mp.controllers import (
    discovery_controller,
    global_context_controller,
    policy_status_controller,
    replicas,
)
from kyverno_mp.controllers.certificates import controller as certificates
from kyverno_mp.controllers.certificates.controller import CertificateController
from kyverno_mp.controllers.discovery_controller import DiscoveryController
from kyverno_mp.controllers.global_context_controller import GlobalContextController
from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.controllers.global_context_status import GlobalContextStatuses
from kyverno_mp.controllers.health_lease import HealthLease
from kyverno_mp.controllers.policy_status_controller import PolicyStatusController
from kyverno_mp.controllers.replicas import ReplicasController
from kyverno_mp.controllers.webhook_config import controller as webhooks
from kyverno_mp.controllers.webhook_config.controller import Inputs, WebhookController
from kyverno_mp.controllers.webhook_config.owner import find_owner
from kyverno_mp.leader.control import health, keys
from kyverno_mp.leader.control.health import (
    LeaderHealth,
    LeaderHealthController,
    heard_of_policies,
    read_leader_health,
)
from kyverno_mp.leader.control.in_force import (
    ServedPolicies,
    kept_of,
    settled_versions,
    version_of,
)
from kyverno_mp.leader.control.options import (
    certificate_rules,
    static_configurations,
    webhook_options,
)
from kyverno_mp.leader.control.parts import Parts
from kyverno_mp.queues.reconcile import Reconciler


def build(parts: Parts) -> dict[str, Reconciler]:
    """Return every controller of the leader."""
    certificate = certificate_controller(parts)
    webhook = webhook_controller(parts, certificate)
    return {
        certificates.NAME: certificate,
        webhooks.NAME: webhook,
        policy_status_controller.NAME: status_controller(parts, webhook),
        global_context_controller.NAME: context_controller(parts),
        replicas.CONTROLLER: replicas_controller(parts),
        health.NAME: health_controller(parts, certificate),
        discovery_controller.NAME: directory_controller(parts),
    }


def certificate_controller(parts: Parts) -> CertificateController:
    """Reconcile the certificates; register changes immediately."""

    def on_bundle() -> None:
        parts.queue.add(keys.WEBHOOKS)
        parts.queue.add(keys.HEALTH)

    return CertificateController(
        parts.objects,
        parts.election,
        certificate_rules(parts.place.settings),
        parts.place.clock,
        parts.place.serve_with,
        on_bundle,
    )


def webhook_controller(
    parts: Parts, certificate: CertificateController
) -> WebhookController:
    """Reconcile the webhook configurations, and then the policy statuses."""
    place = parts.place

    def on_registered() -> None:
        # Policies that waited for the workers may now have other unmet conditions.
        parts.queue.forget(keys.STATUSES)
        parts.queue.add(keys.STATUSES)

    return WebhookController(
        parts.objects,
        parts.election,
        _inputs(parts, certificate),
        place.clock,
        compare_all=lambda: parts.queue.add(keys.WEBHOOKS),
        on_registered=on_registered,
    )


def _inputs(parts: Parts, certificate: CertificateController) -> Inputs:
    place, followed = parts.place, parts.followed
    settings, clock_s = place.settings, place.clock.monotonic_s

    def version_of_own(key: str) -> str:
        plural, _, name = key.partition("/")
        return parts.own[plural].version_of(("", name))

    return Inputs(
        documents=followed.policies.documents,
        directory=lambda: parts.discovery.directory,
        ca_bundle=certificate.ca_bundle,
        options=lambda ca_bundle: webhook_options(
            settings, followed.configuration.current.configuration, ca_bundle
        ),
        owner=lambda: find_owner(followed.client),
        static=static_configurations,
        may_register=lambda: place.status.read().generation > 0,
        kept=lambda: kept_of(place.status.read()),
        health=HealthLease(parts.guarded, settings.namespace, clock_s),
        version_of=version_of_own,
    )


def status_controller(
    parts: Parts, webhook: WebhookController
) -> PolicyStatusController:
    """Reconcile the statuses of policies."""
    place, policies = parts.place, parts.followed.policies
    return PolicyStatusController(
        parts.objects,
        parts.election,
        place.clock,
        webhooks=webhook,
        served=ServedPolicies(place.status, place.page).read,
        lagging=lambda policy: parts.replicas.behind(*version_of(policies, policy)),
    )


def context_controller(parts: Parts) -> GlobalContextController:
    """Reconcile the statuses and Events of GlobalContextEntries."""
    return GlobalContextController(
        GlobalContextStatuses(parts.guarded),
        GlobalContextEvents(parts.objects, parts.recorder.events.tell),
        parts.election,
        parts.followed.context.states,
        parts.place.clock,
    )


def replicas_controller(parts: Parts) -> ReplicasController:
    """Report to the other replicas what this one enforces."""
    return ReplicasController(
        parts.replicas,
        lambda: settled_versions(parts.followed.policies, parts.place.page),
    )


def health_controller(
    parts: Parts, certificate: CertificateController
) -> LeaderHealthController:
    """Report to the health process the leader's view of its cluster."""
    place, followed = parts.place, parts.followed
    began_ns = place.clock.monotonic_ns()
    before = read_leader_health(place.runtime_dir)
    before_ns = before.heard_ns if before else began_ns

    def current() -> LeaderHealth:
        heard_ns = heard_of_policies(
            (one.heard_ns for one in followed.policies.informers),
            publishes=place.status.read().published_ns >= began_ns,
            before_ns=before_ns,
        )
        failing = followed.metrics.failing(place.clock.monotonic_ns())
        return LeaderHealth(certificate.is_trusted(), heard_ns, failing)

    return LeaderHealthController(place.runtime_dir, current)


def directory_controller(parts: Parts) -> DiscoveryController:
    """Reconcile what the API server serves; dependents follow immediately."""

    def on_change() -> None:
        parts.followed.context.retry_now()
        parts.queue.add(keys.WEBHOOKS)

    return DiscoveryController(
        parts.discovery,
        look=lambda: parts.queue.add(keys.DISCOVERY),
        on_change=on_change,
    )
