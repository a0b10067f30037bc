"""Reconcile the API server's webhook configurations with the computed ones.

Room: controllers. Takes: desired configurations, Objects guarded by the lease.
Gives: the changed configurations, written. Next: the API server.
May touch: the API server through kube.
Source: docs/behaviour/controllers 3.2, 3.7.

Each desired configuration gets the API server's defaults before the comparison, so that
an equal configuration is never written again, however often this runs.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.controllers.webhook_config.callers import with_caller
from kyverno_mp.controllers.webhook_config.options import (
    MANAGED_BY,
    MANAGER,
    MUTATING,
    VALIDATING,
)
from kyverno_mp.errors import KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_GROUP: Final = "admissionregistration.k8s.io"
RESOURCES: Final = {
    VALIDATING: Resource(
        group=_GROUP,
        version="v1",
        plural="validatingwebhookconfigurations",
        namespaced=False,
    ),
    MUTATING: Resource(
        group=_GROUP,
        version="v1",
        plural="mutatingwebhookconfigurations",
        namespaced=False,
    ),
}
_DEFAULT_PORT: Final = 443
_DEFAULT_TIMEOUT_S: Final = 10


def reconcile(
    objects: Objects,
    desired: Iterable[Json],
    *,
    create_only: Iterable[str] = (),
    on_compared: Callable[[Json, Json], None] = lambda _desired, _stored: None,
) -> int:
    """Create or update each configuration; return the number of writes.

    ``create_only`` contains the names of configurations that users own once they exist
    (autoUpdateWebhooks=false). Only CA bundle and path segment are updated, because
    without them the API server would reject our answers, or we its calls.
    ``on_compared`` receives each desired configuration that the API server now has, and
    the one that it returned: the written one, or the one that is equal.

    Raises: DependencyError, LeaseLost.
    """
    kept = frozenset(create_only)
    count = 0
    for raw in desired:
        stored, is_written = _reconcile_one(objects, raw, kept)
        count += is_written
        if stored is not None:
            on_compared(raw, stored)
    return count


def remove_all(client: Client, objects: Objects) -> int:
    """Delete all our configurations, because no replica will answer any more (3.7)."""
    removed = 0
    for resource in RESOURCES.values():
        selector = [("labelSelector", f"{MANAGED_BY}={MANAGER}")]
        listing = client.get(resource.collection(), selector)
        for raw in listing.get("items") or ():
            if (raw["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER:
                removed += objects.delete(resource, key_of(raw))
    return removed


def same(desired: Json, observed: Json) -> bool:
    """Return whether the API server has the desired configuration."""
    there, wanted = observed.get("metadata") or {}, desired["metadata"]
    if there.get("labels") != wanted["labels"]:
        return False
    # Upstream replaces annotations wholesale (3.1).
    if (there.get("annotations") or {}) != wanted.get("annotations", {}):
        return False
    if _owners(there) != _owners(wanted):
        return False
    kind = desired["kind"]
    return [_filled(webhook, kind) for webhook in observed.get("webhooks") or ()] == [
        _filled(one, kind) for one in desired["webhooks"]
    ]


def _reconcile_one(
    objects: Objects, desired: Json, kept: frozenset[str]
) -> tuple[Json | None, bool]:
    """Return the stored object, None if it is not known, and whether it was written."""
    resource, key = RESOURCES[desired["kind"]], key_of(desired)
    observed = objects.find(resource, key)
    if observed is None:
        try:
            written = objects.create(resource, desired)
        except KubeConflict:
            # Another client created it meanwhile; the next reconcile compares it.
            return None, False
        _log.info("created %s", key[1])
        return written, True
    if key[1] in kept:
        wanted = _trusting(desired, observed)
    else:
        wanted = None if same(desired, observed) else _merged(desired, observed)
    if wanted is None:
        return observed, False
    try:
        written = objects.replace(resource, wanted)
    except (KubeConflict, KubeNotFound):
        return None, False
    _log.info("updated %s", key[1])
    return written, True


def _trusting(desired: Json, observed: Json) -> Json | None:
    """Return the observed object as our caller needs it, None if it is already."""
    if not desired["webhooks"]:
        return None
    ours = desired["webhooks"][0]["clientConfig"]
    before = observed.get("webhooks") or []
    after = [
        {**one, "clientConfig": with_caller(one["clientConfig"], ours)}
        for one in before
    ]
    return {**observed, "webhooks": after} if after != before else None


def _merged(desired: Json, observed: Json) -> Json:
    metadata = {
        name: value
        for name, value in (observed.get("metadata") or {}).items()
        if name not in ("labels", "annotations", "ownerReferences", "managedFields")
    }
    return {**desired, "metadata": {**metadata, **desired["metadata"]}}


def _owners(metadata: Json) -> list[tuple[str, str]]:
    return [
        (str(owner_reference.get("name")), str(owner_reference.get("uid")))
        for owner_reference in metadata.get("ownerReferences") or ()
    ]


def _filled(webhook: Json, kind: str) -> Json:
    """Apply the API server's defaults (admissionregistration/v1)."""
    defaults: Json = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": _DEFAULT_TIMEOUT_S,
        "matchConditions": [],
    }
    if kind == MUTATING:
        defaults["reinvocationPolicy"] = "Never"
    filled = {**defaults, **{k: v for k, v in webhook.items() if v is not None}}
    filled["rules"] = [{"scope": "*", **rule} for rule in webhook.get("rules") or ()]
    client = dict(filled.get("clientConfig") or {})
    if client.get("service"):
        client["service"] = {"port": _DEFAULT_PORT, **client["service"]}
    filled["clientConfig"] = client
    return filled
