"""Remove our webhook configurations and leases when the last replica shuts down.

Room: controllers. Takes: a Client, the Deployment's name. Gives: no webhook stays
registered. Next: leader/control/run.py calls it at SIGTERM; the webhook still answers.
May touch: the API server through kube. Source: docs/behaviour/controllers 3.7.

A pod that restarts, moves, or is replaced by a newer one leaves everything in place. So
does a pod that is killed or has lost its permissions. In that case, the API server
deletes the configurations together with their owner
(controllers/webhook_config/owner.py).
"""

import logging
from typing import Final

from kyverno_mp.controllers.health_lease import HEALTH_LEASE
from kyverno_mp.controllers.webhook_config.reconcile import remove_all
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import LEASES
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client

_log = logging.getLogger(__name__)
DEPLOYMENTS: Final = Resource(group="apps", version="v1", plural="deployments")
_LOCK_LEASE: Final = "kyvernopre-lock"
"""The Lease that upstream's init container creates. Without it, upstream starts over.
"""


def deregister(client: Client, namespace: str, deployment: str) -> bool:
    """Remove our configurations and leases if no replica remains.

    Return whether they were removed. Raises: nothing. A failed read or delete is
    logged, and the remaining objects stay.
    """
    objects = Objects(client)
    try:
        if not _is_last(objects, namespace, deployment):
            return False
        removed = remove_all(client, objects)
        for name in (_LOCK_LEASE, HEALTH_LEASE):
            objects.delete(LEASES, (namespace, name))
    except DependencyError as error:
        _log.warning("webhook configurations left in place: %s", error.message)
        return False
    _log.info("last replica shut down, deleted %d webhook configurations", removed)
    return True


def _is_last(objects: Objects, namespace: str, deployment: str) -> bool:
    found = objects.find(DEPLOYMENTS, (namespace, deployment))
    if found is None or found["metadata"].get("deletionTimestamp"):
        return True
    return (found.get("spec") or {}).get("replicas") == 0
