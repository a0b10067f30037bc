"""Remove the leftovers of a case, so that the next one is judged alone.

Takes: a connection. May touch: every policy, exception and entry of the cluster,
workloads in its namespace default, the certificates in the namespace kyverno, objects
that pools create.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.controllers.webhook_config.options import MANAGED_BY
from tests.e2e.api import Api
from tests.e2e.etcd import keys

_KINDS: Final = (
    "kyverno.io/v1/clusterpolicies",
    "kyverno.io/v1/policies",
    "kyverno.io/v2/policyexceptions",
    "kyverno.io/v2/cleanuppolicies",
    "kyverno.io/v2/clustercleanuppolicies",
    "kyverno.io/v2/globalcontextentries",
)
_MADE: Final = (
    "kyverno.io/v2/updaterequests",
    "reports.kyverno.io/v1/ephemeralreports",
    "reports.kyverno.io/v1/clusterephemeralreports",
    "wgpolicyk8s.io/v1alpha2/policyreports",
    "wgpolicyk8s.io/v1alpha2/clusterpolicyreports",
    "openreports.io/v1alpha1/reports",
    "openreports.io/v1alpha1/clusterreports",
)
"""Objects that pools create for themselves and for users, in every namespace."""
_WEBHOOKS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{plural}?labelSelector={MANAGED_BY}"
    for plural in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
)
_CUSTOM: Final = {kind.partition("/")[0] for kind in (*_KINDS, *_MADE)}
"""The groups of our CustomResourceDefinitions."""
_GENERATED_BY: Final = "generate.kyverno.io/policy-name"
_GENERATED: Final = (
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/resourcequotas",
    "/api/v1/limitranges",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
)
"""Objects that policies generate in Kyverno's suites."""
_WORKLOADS: Final = (
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/apps/v1/namespaces/default/statefulsets",
    "/apis/apps/v1/namespaces/default/daemonsets",
    "/apis/apps/v1/namespaces/default/replicasets",
    "/apis/batch/v1/namespaces/default/cronjobs",
    "/apis/batch/v1/namespaces/default/jobs",
    "/api/v1/namespaces/default/pods",
)
"""Objects that scripts create there and leave behind."""
_OK: Final = 200


def settle() -> None:
    """Wait until the deleted policies are no longer in force, as far as is known."""
    time.sleep(1.0)


def sweep(
    api: Api, settled: Callable[[], None] = settle, etcd_url: str | None = None
) -> None:
    """Delete all policies, their dependent objects, and forgotten workloads.

    ``settled`` returns when no policy is in force; it is called if any existed.
    ``etcd_url`` tells which collections have objects, so that the others are not read.
    """
    if sweep_policies(api, etcd_url):
        settled()
    stored = Stored(etcd_url)
    _delete_all(api, [f"/apis/{kind}" for kind in _MADE], stored)
    _delete_all(api, _GENERATED, stored, f"?labelSelector={_GENERATED_BY}")
    for base in _WORKLOADS:
        for one in api.get(base).get("items") or [] if stored.has(base) else ():
            at_once = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            api.ask("DELETE", f"{base}/{one['metadata']['name']}", at_once)


class Stored:
    """The keys that etcd has now; without ``etcd_url``, every collection may exist."""

    def __init__(self, etcd_url: str | None) -> None:
        self._keys = None if etcd_url is None else keys(etcd_url)

    def has(self, collection: str) -> bool:
        """Return whether the kind of the collection has objects, as far as is known.

        K8S: the group is part of a key only for custom kinds.
        """
        group, *_, plural = collection.removeprefix("/apis/").split("/")
        kind = f"{group}/{plural}" if group in _CUSTOM else plural
        prefix = f"/registry/{kind}/"
        return self._keys is None or any(key.startswith(prefix) for key in self._keys)


def sweep_policies(api: Api, etcd_url: str | None = None) -> bool:
    """Delete all policies and their dependent objects; return whether any existed."""
    stored = Stored(etcd_url)
    return _delete_all(api, [f"/apis/{kind}" for kind in _KINDS], stored)


def _delete_all(
    api: Api, collections: Sequence[str], stored: Stored, query: str = ""
) -> bool:
    """Delete every object of the collections; return whether any existed."""
    found = False
    for collection in collections:
        if not stored.has(collection):
            continue
        base, plural = collection.rsplit("/", 1)
        status, listed = api.ask("GET", f"{collection}{query}")
        for one in listed["items"] if status == _OK else ():
            meta = one["metadata"]
            inner = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
            api.ask("DELETE", f"{base}{inner}/{plural}/{meta['name']}")
            found = True
    return found


def sweep_webhooks(api: Api) -> None:
    """Delete the webhook configurations, which call a product that has ended."""
    for path in _WEBHOOKS:
        api.delete(path)


def sweep_certificates(api: Api) -> None:
    """Delete the certificates: the next product creates its own."""
    base = "/api/v1/namespaces/kyverno/secrets"
    for one in api.get(base).get("items") or []:
        if one["type"] == "kubernetes.io/tls":
            api.ask("DELETE", f"{base}/{one['metadata']['name']}")
