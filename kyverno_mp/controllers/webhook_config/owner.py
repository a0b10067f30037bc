"""Find the object that owns all our webhook configurations.

Room: controllers. Takes: a Client. Gives: an owner reference or None, from a watch.
Next: controllers/webhook_config/options.py puts it into every configuration.
May touch: the API server through kube.
Source: docs/behaviour/controllers 3.1 (ClusterRole ``*:webhook``), 14.17.

K8S: the API server deletes an object whose owner is gone. Upstream's chart contains no
such ClusterRole. deploy/ does, so after our RBAC is deleted, no unanswered webhook
remains.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope
from kyverno_mp.values.jsonvalue import Json

CLUSTER_ROLES: Final = Resource(
    group="rbac.authorization.k8s.io",
    version="v1",
    plural="clusterroles",
    namespaced=False,
)
_SCOPE: Final = WatchScope(
    resource=CLUSTER_ROLES,
    label_selector="app.kubernetes.io/component=kyverno",
    metadata_only=True,
)
_SUFFIX: Final = ":webhook"


def find_owner(client: Client) -> Json | None:
    """Return a reference to the first such ClusterRole. Raises: DependencyError."""
    listing = client.get(_SCOPE.path, _SCOPE.query())
    return _owner_in(
        (raw["metadata"]["name"], raw["metadata"]["uid"])
        for raw in listing.get("items") or ()
    )


class WatchedOwner:
    """The owner as a watch shows it, so that looking at it makes no call."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.informer = Informer(client, _SCOPE, _uid_of)

    def find(self) -> Json | None:
        """Return ``find_owner`` by the watch if that is healthy."""
        informer = self.informer
        if informer.failures or not informer.synced:
            return find_owner(self._client)
        return _owner_in((key[1], uid) for key, uid in informer.snapshot().items())


def _uid_of(raw: msgspec.Raw) -> str:
    return IDENTITY.decode(raw).metadata.uid


def _owner_in(roles: Iterable[tuple[str, str]]) -> Json | None:
    for name, uid in sorted(roles):
        if name.endswith(_SUFFIX):
            return {
                "apiVersion": CLUSTER_ROLES.api_version,
                "kind": "ClusterRole",
                "name": name,
                "uid": uid,
            }
    return None
