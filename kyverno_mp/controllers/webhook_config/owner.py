"""Find the object that owns all our webhook configurations.

Room: controllers. Takes: a Client. Gives: an owner reference or None.
Next: controllers/webhook_config/options.py puts it into every configuration.
May touch: the API server through kube.
Source: docs/behaviour/controllers 3.1 (ClusterRole ``*:webhook``), 14.17.

K8S: the API server deletes an object whose owner is gone. Upstream's chart contains no
such ClusterRole. deploy/ does, so after our RBAC is deleted, no unanswered webhook
remains.
"""

from typing import Final

from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

CLUSTER_ROLES: Final = Resource(
    group="rbac.authorization.k8s.io",
    version="v1",
    plural="clusterroles",
    namespaced=False,
)
_SELECTOR: Final = [("labelSelector", "app.kubernetes.io/component=kyverno")]
_SUFFIX: Final = ":webhook"


def find_owner(client: Client) -> Json | None:
    """Return a reference to the first such ClusterRole. Raises: DependencyError."""
    listing = client.get(CLUSTER_ROLES.collection(), _SELECTOR)
    for raw in listing.get("items") or ():
        metadata = raw["metadata"]
        if metadata["name"].endswith(_SUFFIX):
            return {
                "apiVersion": CLUSTER_ROLES.api_version,
                "kind": "ClusterRole",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
    return None
