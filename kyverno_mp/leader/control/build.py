"""Create the leader's controllers, one function each.

Room: leader. Takes: Dependencies. Gives: reconcilers by the name of their controller.
Next: leader/control/wire.py. May touch: nothing before a reconcile.
Source: docs/architecture.md 2 (small controllers in the leader process);
docs/behaviour/controllers 8.
"""

from collections.abc import Callable, Iterable
from functools import partial

from kyverno_mp.controllers import (
    discovery_controller,
    exception_expiry,
    global_context_controller,
    policy_status_controller,
    replicas,
    rollouts,
)
from kyverno_mp.controllers.admission_policies import controller as admission_policies
from kyverno_mp.controllers.admission_policies.controller import (
    AdmissionPolicyController,
)
from kyverno_mp.controllers.admission_policies.controller import (
    Inputs as GeneratorInputs,
)
from kyverno_mp.controllers.admission_policies.generated import Source
from kyverno_mp.controllers.admission_policies.objects import GeneratedObjects
from kyverno_mp.controllers.admission_policies.plans import Plans
from kyverno_mp.controllers.caller_path import controller as caller_path
from kyverno_mp.controllers.caller_path.controller import (
    ANY_SERIAL,
    CallerPathController,
)
from kyverno_mp.controllers.caller_path.controller import Inputs as CallerPathInputs
from kyverno_mp.controllers.caller_path.known import Known
from kyverno_mp.controllers.certificates import controller as certificates
from kyverno_mp.controllers.certificates.controller import CertificateController
from kyverno_mp.controllers.discovery_controller import DiscoveryController
from kyverno_mp.controllers.exception_expiry import ExceptionExpiryController
from kyverno_mp.controllers.global_context_controller import GlobalContextController
from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.controllers.global_context_status import GlobalContextStatuses
from kyverno_mp.controllers.health_lease import HealthLease
from kyverno_mp.controllers.policy_status import PolicyStatuses
from kyverno_mp.controllers.policy_status_controller import PolicyStatusController
from kyverno_mp.controllers.replicas import ReplicasController
from kyverno_mp.controllers.rollout_status import RolloutStatuses
from kyverno_mp.controllers.rollouts import RolloutsController
from kyverno_mp.controllers.scan_permissions import scan_permissions
from kyverno_mp.controllers.webhook_config import controller as webhooks
from kyverno_mp.controllers.webhook_config.callers import segments_of
from kyverno_mp.controllers.webhook_config.controller import Inputs, WebhookController
from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.leader.control import health, keys
from kyverno_mp.leader.control.dependencies import Dependencies
from kyverno_mp.leader.control.health import (
    LeaderHealth,
    LeaderHealthController,
    confirmed_at,
    context_problems,
    read_leader_health,
)
from kyverno_mp.leader.control.in_force import (
    ServedPolicies,
    earlier_versions_of,
    settled_versions,
    version_of,
)
from kyverno_mp.leader.control.options import (
    caller_path_rules,
    certificate_rules,
    static_configurations,
    webhook_options,
)
from kyverno_mp.queues.reconcile import Reconciler


def build(shared: Dependencies) -> dict[str, Reconciler]:
    """Return the controllers of the leader; a pod without a webhook has only two."""
    if not shared.replica.settings.runs_webhook:
        return {
            health.NAME: health_controller(shared, lambda: True),
            discovery_controller.NAME: directory_controller(shared),
        }
    certificate = certificate_controller(shared)
    callers = caller_path_controller(shared)
    webhook = webhook_controller(shared, certificate, callers)
    generator = generator_controller(shared, webhook)
    return {
        certificates.NAME: certificate,
        caller_path.NAME: callers,
        webhooks.NAME: webhook,
        policy_status_controller.NAME: status_controller(shared, webhook, generator),
        admission_policies.NAME: generator,
        global_context_controller.NAME: context_controller(shared),
        replicas.CONTROLLER: replicas_controller(shared),
        rollouts.CONTROLLER: rollouts_controller(shared),
        exception_expiry.CONTROLLER: exceptions_controller(shared),
        health.NAME: health_controller(shared, certificate.is_trusted),
        discovery_controller.NAME: directory_controller(shared),
    }


def certificate_controller(shared: Dependencies) -> CertificateController:
    """Reconcile the certificates, and register changes immediately."""

    def on_bundle() -> None:
        shared.add(keys.WEBHOOKS)
        shared.add(keys.HEALTH)

    return CertificateController(
        shared.objects,
        shared.election,
        certificate_rules(shared.replica.settings),
        shared.replica.clock,
        shared.replica.serve_with,
        on_bundle,
    )


def caller_path_controller(shared: Dependencies) -> CallerPathController:
    """Reconcile the secret path segment, and register changes immediately."""
    replica, replicas = shared.replica, shared.replicas
    settings, page = replica.settings, replica.page

    def own() -> Known:
        serial = replica.callers.known(page) if settings.caller_path else ANY_SERIAL
        return Known(serial, page.exposures())

    def registered() -> frozenset[str]:
        informers = shared.own.values()
        return segments_of(
            content
            for informer in informers
            for content in informer.snapshot().values()
        )

    replicas.knows = own
    return CallerPathController(
        shared.objects,
        shared.election,
        caller_path_rules(settings),
        CallerPathInputs(
            own=own,
            others=replicas.known,
            silent=replicas.silent,
            registered=registered,
            publish=replica.callers.set,
            on_registered=lambda: shared.add(keys.CONFIGURATION),
            lacks=partial(shared.followed.metrics.rights.hold, caller_path.NAME),
        ),
        replica.clock,
        is_on=settings.caller_path,
    )


def webhook_controller(
    shared: Dependencies,
    certificate: CertificateController,
    callers: CallerPathController,
) -> WebhookController:
    """Reconcile the webhook configurations, and then the policy statuses."""
    replica = shared.replica

    def on_registered() -> None:
        # Policies that waited for the workers may now wait for other conditions.
        shared.queue.forget(keys.STATUSES)
        shared.add(keys.STATUSES)
        shared.add(keys.GENERATED)

    return WebhookController(
        shared.objects,
        shared.election,
        _inputs(shared, certificate, callers),
        replica.clock,
        compare_all=lambda: shared.add(keys.WEBHOOKS),
        on_registered=on_registered,
    )


def _inputs(
    shared: Dependencies,
    certificate: CertificateController,
    callers: CallerPathController,
) -> Inputs:
    replica, followed = shared.replica, shared.followed
    settings, clock_s = replica.settings, replica.clock.monotonic_s

    def version_of_own(key: str) -> str:
        plural, _, name = key.partition("/")
        informer = shared.own[plural]
        return "" if informer.failures else informer.version_of(("", name))

    return Inputs(
        documents=followed.policies.documents,
        cel_documents=followed.policies.cel_documents,
        directory=lambda: shared.discovery.directory,
        ca_bundle=certificate.ca_bundle,
        options=lambda ca_bundle: webhook_options(
            settings,
            followed.configuration.current.configuration,
            ca_bundle,
            callers.segment(),
            upstream_paths=callers.needs_upstream_paths,
        ),
        owner=shared.owner.find,
        static=static_configurations,
        # Without the registered segment, the paths would be written without one.
        may_register=lambda: callers.is_read and replica.status.read().generation > 0,
        kept=lambda: earlier_versions_of(replica.status.read()),
        health=HealthLease(shared.guarded, settings.namespace, clock_s),
        version_of=version_of_own,
    )


def generator_controller(
    shared: Dependencies, webhook: WebhookController
) -> AdmissionPolicyController:
    """Reconcile the native admission policies that are generated from our policies."""
    replica, followed = shared.replica, shared.followed
    policies, settings = followed.policies, replica.settings
    honoured = settings.exceptions_in

    def registered() -> tuple[int, Iterable[object]]:
        configuration = webhook.registered
        return (
            (0, ())
            if configuration is None
            else (configuration.term, (*configuration.policies, *configuration.cel))
        )

    def in_force(policy: Source) -> bool:
        key = policy.metadata.namespace, policy.metadata.name
        plural, version = policies.version_of(policy.kind, key)
        settled = settled_versions(policies, replica.page) or {}
        return settled.get(plural, 0) >= version and not shared.replicas.lagging(
            plural, version
        )

    controller = AdmissionPolicyController(
        GeneratedObjects(followed.client, shared.guarded),
        Plans(
            validating=settings.generate_validating_admission_policies,
            mutating=settings.generate_mutating_admission_policies,
        ),
        GeneratorInputs(
            registered=registered,
            exceptions=policies.exception_documents,
            allows=lambda namespace: honoured in ("*", namespace),
            directory=lambda: shared.discovery.directory,
            in_force=in_force,
            submit=shared.recorder.events.submit,
            on_status_change=lambda: shared.add(keys.STATUSES),
        ),
        shared.election,
        replica.clock,
    )
    followed.metrics.generated = controller.counts
    return controller


def status_controller(
    shared: Dependencies,
    webhook: WebhookController,
    generator: AdmissionPolicyController,
) -> PolicyStatusController:
    """Reconcile the statuses of policies."""
    replica, policies = shared.replica, shared.followed.policies
    missing = scan_permissions(
        LivePermissions(shared.followed.client),
        replica.settings.reports_service_account,
    )
    return PolicyStatusController(
        PolicyStatuses(shared.guarded, missing, generator),
        shared.election,
        replica.clock,
        webhooks=webhook,
        served=ServedPolicies(replica.status, replica.page).read,
        lagging=lambda policy: shared.replicas.lagging(*version_of(policies, policy)),
    )


def context_controller(shared: Dependencies) -> GlobalContextController:
    """Reconcile the statuses and Events of GlobalContextEntries."""
    return GlobalContextController(
        GlobalContextStatuses(shared.guarded),
        GlobalContextEvents(shared.objects, shared.recorder.events.submit),
        shared.election,
        shared.followed.context.states,
        shared.replica.clock,
    )


def replicas_controller(shared: Dependencies) -> ReplicasController:
    """Report the policies that this replica enforces to the other replicas."""
    return ReplicasController(
        shared.replicas,
        lambda: settled_versions(shared.followed.policies, shared.replica.page),
    )


def rollouts_controller(shared: Dependencies) -> RolloutsController:
    """Reconcile how far the gradual enforcement of policies has come."""
    policies, metrics = shared.followed.policies, shared.followed.metrics

    def documents() -> list[bytes] | None:
        informers = policies.informers
        if not (policies.is_complete and all(each.synced for each in informers)):
            return None
        return [*policies.documents(), *policies.cel_documents()]

    controller = RolloutsController(
        shared.guarded,
        shared.election,
        shared.rollouts_key,
        rollouts.Inputs(
            shared.stored_rollouts,
            documents,
            shared.replica.rollouts.set,
            shared.denials.excesses,
            metrics.fell_back,
            RolloutStatuses(shared.guarded, shared.recorder.events.submit).tell,
        ),
        shared.replica.clock,
    )
    metrics.rollouts = controller.counts
    return controller


def exceptions_controller(shared: Dependencies) -> ExceptionExpiryController:
    """Report the PolicyExceptions that expire."""
    honoured = shared.replica.settings.exceptions_in
    controller = ExceptionExpiryController(
        shared.election,
        shared.followed.policies.exception_documents,
        lambda namespace: honoured in ("*", namespace),
        shared.recorder.events.submit,
        shared.replica.clock,
    )
    shared.followed.metrics.exceptions = controller.counts
    return controller


def health_controller(
    shared: Dependencies, is_trusted: Callable[[], bool]
) -> LeaderHealthController:
    """Report the leader's view of its cluster to the health process."""
    replica, followed = shared.replica, shared.followed
    began_ns = replica.clock.monotonic_ns()
    before = read_leader_health(replica.runtime_dir)
    before_ns = before.confirmed_ns if before else began_ns

    def current() -> LeaderHealth:
        confirmed_ns = confirmed_at(
            (informer.last_message_ns for informer in followed.policies.informers),
            publishes=replica.status.read().published_ns >= began_ns,
            before_ns=before_ns,
        )
        failing = followed.metrics.failing(replica.clock.monotonic_ns())
        problems = (
            *context_problems(followed.context.states()),
            *followed.metrics.rights.problems(),
        )
        return LeaderHealth(is_trusted(), confirmed_ns, failing, problems)

    return LeaderHealthController(replica.runtime_dir, current)


def directory_controller(shared: Dependencies) -> DiscoveryController:
    """Reconcile the served resources; dependents follow immediately."""

    def on_change() -> None:
        shared.followed.context.retry_now()
        shared.add(keys.WEBHOOKS)

    return DiscoveryController(
        shared.discovery,
        refresh_now=lambda: shared.add(keys.DISCOVERY),
        on_change=on_change,
    )
