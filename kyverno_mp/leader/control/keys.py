"""Define the keys that events add to the queues of the leader's controllers.

Room: leader. Takes: nothing. Gives: Requests.
Next: leader/control/{build,wire}.py.
"""

from typing import Final

from kyverno_mp.controllers import (
    discovery_controller,
    exception_expiry,
    global_context_controller,
    policy_status_controller,
    replicas,
    rollouts,
)
from kyverno_mp.controllers.admission_policies import controller as admission_policies
from kyverno_mp.controllers.caller_path import controller as caller_path
from kyverno_mp.controllers.certificates import controller as certificates
from kyverno_mp.controllers.webhook_config import controller as webhooks
from kyverno_mp.leader.control import health
from kyverno_mp.queues.reconcile import Request

CERTIFICATES: Final = Request(certificates.NAME, certificates.ALL)
CALLERS: Final = Request(caller_path.NAME, caller_path.ALL)
CALLERS_LOOK: Final = Request(caller_path.NAME, caller_path.LOOK)
WEBHOOKS: Final = Request(webhooks.NAME, webhooks.ALL)
CHANGED_POLICIES: Final = Request(webhooks.NAME, webhooks.POLICIES)
REFUSED_POLICIES: Final = Request(webhooks.NAME, webhooks.REFUSED)
CONFIGURATION: Final = Request(webhooks.NAME, webhooks.CONFIGURATION)
STATUSES: Final = Request(policy_status_controller.NAME, policy_status_controller.ALL)
GENERATED: Final = Request(admission_policies.NAME, admission_policies.ALL)
ENTRIES: Final = Request(global_context_controller.NAME, global_context_controller.ALL)
REPLICAS: Final = Request(replicas.CONTROLLER, replicas.ALL)
ROLLOUTS: Final = Request(rollouts.CONTROLLER, rollouts.ALL)
EXCEPTIONS: Final = Request(exception_expiry.CONTROLLER, exception_expiry.ALL)
HEALTH: Final = Request(health.NAME, health.ALL)
DISCOVERY: Final = Request(discovery_controller.NAME, discovery_controller.ALL)
NEW_KINDS: Final = Request(discovery_controller.NAME, discovery_controller.CRDS)
WITHOUT_WEBHOOK: Final = frozenset({health.NAME, discovery_controller.NAME})
"""The controllers of a pod without a webhook."""
OF_HOLDERS: Final = (CERTIFICATES, CALLERS, WEBHOOKS, GENERATED, ENTRIES)
"""What the holder of the lease alone does is due at the beginning of a term."""
AT_START: Final = (
    *(DISCOVERY, CERTIFICATES, CALLERS, CALLERS_LOOK, WEBHOOKS, STATUSES, ENTRIES),
    *(HEALTH, REPLICAS, GENERATED, ROLLOUTS, EXCEPTIONS),
)


def configuration_of_ours(plural: str, name: str) -> Request:
    """Return the key of one of our webhook configurations."""
    return Request(webhooks.NAME, f"{plural}/{name}")
