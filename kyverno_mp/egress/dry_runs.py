"""Create objects in a dry run, to compare them with signed manifests.

Room: egress. Takes: objects of the API server's kinds. Gives: LiveDryRuns; satisfies
images/manifests/dry_run.DryRunCreate. Next: webhook/images.py.
May touch: the API server through kube/rest.py and kube/own_access.py, the clock.
Source: docs/behaviour/images 7 (match order); Kyverno
pkg/engine/handlers/validation/validate_manifest.go (checkDryRunPermission).

A dry run stores nothing, but the API server calls its webhooks for it, ours included.
"""

import threading
import time
from contextlib import ExitStack
from typing import Final

import msgspec

from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import MANIFEST_DRY_RUNS_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector

_CALL_NS_MAX: Final = 10 * 10**9
_PERMITTED_S: Final = 5.0
"""How long a permission is known, as in egress/access_reviews.py."""
_REJECTED: Final = (KubeConflict, KubeNotFound, KubeRefused)


class LiveDryRuns:
    """Dry runs of one process; threads may share it."""

    def __init__(
        self,
        client: Client,
        kinds: LiveKinds,
        namespace: str,
        threads: int = 2 * MANIFEST_DRY_RUNS_MAX,
    ) -> None:
        """``namespace``: ours, in which nothing is created.

        ``threads``: the number of threads that review images. Half of them stay free of
        dry runs. The reviews of the created objects have threads of their own.
        """
        self._client = client
        self._kinds = kinds
        self._namespace = namespace
        self._access = OwnAccess(client, time.monotonic, _PERMITTED_S)
        places = max(1, min(MANIFEST_DRY_RUNS_MAX, threads // 2))
        self._places = threading.BoundedSemaphore(places)
        self._tenants_places = threading.BoundedSemaphore(max(1, places // 2))

    def __call__(
        self,
        document: dict[str, Json],
        namespace: str,
        deadline_ns: int,
        is_tenants: bool = False,  # noqa: FBT001, FBT002 - a Callable of the port
    ) -> dict[str, Json] | None:
        """Return the object that would be stored, None if we may not create it.

        ``is_tenants``: whether a namespaced policy asks; all of them together get half
        of the places.
        KYVERNO: a dry run that is not permitted, and one in our namespace, is skipped.
        Raises: ExpressionFailed, DependencyError.
        """
        until_ns = deadline_ns or time.monotonic_ns() + _CALL_NS_MAX
        resource = self._resource(document)
        target_namespace = (
            namespace if resource is not None and resource.namespaced else ""
        )
        if resource is None or target_namespace == self._namespace:
            return None
        with ExitStack() as slots:
            if is_tenants:
                _take_place(self._tenants_places, until_ns, slots)
            _take_place(self._places, until_ns, slots)
            if not self._may_create(resource, target_namespace, until_ns):
                return None
            return self._create(resource, target_namespace, document, until_ns)

    def _resource(self, document: dict[str, Json]) -> Resource | None:
        group, _, version = str(document.get("apiVersion") or "").rpartition("/")
        selector = KindSelector(group, version, str(document.get("kind") or ""), "")
        for resource in self._kinds.resources(selector):
            # A selector can be a pattern.
            if (resource.group, resource.version, resource.kind) == selector[:3]:
                return resource
        return None

    def _may_create(self, resource: Resource, namespace: str, until_ns: int) -> bool:
        """Return our permission. KYVERNO: a failed check is a denial."""
        try:
            return self._access.allows(
                "create", resource, namespace, deadline_ns=until_ns
            )
        except DeadlinePassed:
            raise
        except DependencyError:
            return False

    def _create(
        self, resource: Resource, namespace: str, document: Json, until_ns: int
    ) -> dict[str, Json]:
        call = Call(
            method="POST",
            path=resource.collection(namespace),
            query=[("dryRun", "All")],
            body=msgspec.json.encode(document),
            # K8S: a dry run stores nothing, so a retry is safe.
            repeatable=True,
        )
        try:
            stored = self._client.send(call, until_ns)
        except _REJECTED as error:
            raise ExpressionFailed(error.code, error.message) from error
        if type(stored) is not dict:
            message = "the API server's answer is not an object"
            raise KubeUnavailable("kube.answer", message)
        return stored


def _take_place(
    places: threading.BoundedSemaphore, until_ns: int, exit_stack: ExitStack
) -> None:
    left_s = (until_ns - time.monotonic_ns()) / 1e9
    if not places.acquire(timeout=max(0.0, left_s)):
        message = "too many dry runs of signed manifests"
        raise DeadlinePassed("egress.dry_runs", message)
    exit_stack.callback(places.release)
