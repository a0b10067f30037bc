"""Decide whether a run of a clean-up policy deletes an object.

Room: cleanup. Takes: a Plan, objects as JSON. Gives: Evaluator, which
returns a Verdict for each object. Next: cleanup/scan.py.
May touch: the cluster data through program/ports.py.
Source: docs/behaviour/controllers 7 (Matching).
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol

import msgspec

from kyverno_mp.cleanup.plan import Plan
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    InputError,
    NamespaceGone,
    SnapshotUnusable,
)
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import CLEANUP_ANSWERS_MAX
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import ApiCalls, ApiRequest, ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.secrecy import reason_for
from kyverno_mp.queues import clock as queues_clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of

_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_KYVERNO: Final = "kyverno"


class Verdict(Enum):
    """The decision of a policy about one object."""

    IGNORED = "ignored"
    KEPT = "kept"
    """Match and exclude select the object, but the conditions are false."""
    DELETED = "deleted"
    UNDECIDED = "undecided"


class EvaluatorDependencies(Protocol):
    """The dependencies of an Evaluator; CleanupDependencies implements it."""

    @property
    def cluster_data(self) -> ClusterData:
        """Return the cluster data that policies may read."""

    @property
    def settings(self) -> Settings:
        """Return the settings, e.g. whether Kyverno's own objects are protected."""

    @property
    def is_excluded(self) -> Callable[[Request], bool]:
        """Return whether the operator's resourceFilters exempt an object."""

    @property
    def clock(self) -> queues_clock.Clock:
        """Return the clocks."""


class Evaluator:
    """One policy in one run; threads may share it. Context entries are loaded once."""

    def __init__(self, plan: Plan, dependencies: EvaluatorDependencies) -> None:
        data = _with_cached_calls(dependencies.cluster_data)
        self._judge = plan.judge(data)
        self._is_excluded = dependencies.is_excluded
        self._protects = dependencies.settings.protect_managed_resources
        self._namespaces = dependencies.cluster_data.namespaces
        self._objects = dependencies.cluster_data.objects
        self._lock = threading.Lock()
        self._unpublished: dict[str, dict[str, str] | None] = {}
        """The labels of namespaces that the leader's copy lacks; None if a namespace is
        gone."""
        clock = Clock(dependencies.clock.now, dependencies.clock.monotonic_ns)
        self._engine = Engine(data, clock)

    def evaluate(
        self, resource: Resource, raw: Json, *, is_final: bool = False
    ) -> tuple[Verdict, str]:
        """Return the verdict on an object, and the public reason if it is undecided.

        ``is_final``: a deletion follows at once, so a namespace that the policy depends
        on is read live. Only this read raises DependencyError.
        """
        metadata = raw.get("metadata") or {}
        if metadata.get("deletionTimestamp"):
            return Verdict.IGNORED, ""
        labels = metadata.get("labels") or {}
        if self._protects and labels.get(_MANAGED_BY) == _KYVERNO:
            return Verdict.IGNORED, ""
        try:
            request = _request(resource, raw)
            if self._judge.names_resources:
                request.review_request = {"resource": _place(resource)}
            live = self._live_namespace(request.namespace) if is_final else None
        except InputError as error:
            return Verdict.UNDECIDED, reason_for(resource.kind, error)
        try:
            return self._evaluate(request, live)
        except NamespaceGone:
            return Verdict.IGNORED, ""
        except (InputError, DependencyError, SnapshotUnusable) as error:
            return Verdict.UNDECIDED, reason_for(resource.kind, error)

    def _evaluate(self, request: Request, live: Json | None) -> tuple[Verdict, str]:
        if self._excludes(request):
            return Verdict.IGNORED, ""
        request.namespace_labels = (
            self._known_labels(request.namespace)
            if live is None
            else labels_of(live["metadata"].get("labels"))
        )
        if not self._judge.selects(request):
            return Verdict.IGNORED, ""
        deletes = self._judge.holds(self._engine.open(request), live)
        return (Verdict.DELETED if deletes else Verdict.KEPT), ""

    def _excludes(self, request: Request) -> bool:
        """Return whether the operator's resource filters exempt the object.

        KYVERNO: the kind is passed as the subresource, so that only filters with a
        wildcard there exempt objects (docs/behaviour/controllers 7, Matching).
        """
        return self._is_excluded(replace(request, subresource=request.kind))

    def _live_namespace(self, namespace: str) -> Json | None:
        """Read a namespace if the policy depends on it, otherwise return None.

        The leader's copy may lack a new label that protects the namespace.
        """
        judge = self._judge
        depends = judge.reads_labels or judge.reads_namespace
        if not namespace or not depends or self._objects is None:
            return None
        object_query = ObjectQuery("", "v1", "Namespace", name=namespace)
        namespaces = self._objects.objects(object_query, 0)
        return namespaces[0] if namespaces else None

    def _known_labels(self, namespace: str) -> dict[str, str]:
        """Return the labels from the leader's copy, or read them.

        Raises: NamespaceGone; ExpressionFailed when the labels are unknown;
        DependencyError.
        """
        if not namespace or not self._judge.reads_labels or self._namespaces is None:
            return {}
        cached_labels = self._namespaces.labels(namespace)
        if cached_labels is not None:
            return dict(cached_labels)
        with self._lock:
            if namespace not in self._unpublished:
                self._unpublished[namespace] = self._of_unpublished(namespace)
            labels = self._unpublished[namespace]
        if labels is None:
            raise NamespaceGone("cleanup.namespace", f"namespace {namespace} is gone")
        return labels

    def _of_unpublished(self, namespace: str) -> dict[str, str] | None:
        """Read the labels of a namespace that is very new; return None if it is gone.

        Raises: ExpressionFailed when the labels are unknown; DependencyError.
        """
        if self._objects is None:
            raise ExpressionFailed(
                "cleanup.namespace", f"the labels of namespace {namespace} are unknown"
            )
        live = self._live_namespace(namespace)
        return None if live is None else labels_of(live["metadata"].get("labels"))


def _request(resource: Resource, raw: Json) -> Request:
    # K8S: the items of a list contain neither kind nor apiVersion.
    raw = {"apiVersion": resource.api_version, "kind": resource.kind, **raw}
    metadata = raw["metadata"]
    return Request(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        name=str(metadata.get("name") or ""),
        namespace=str(metadata.get("namespace") or ""),
        object=raw,
    )


def _place(resource: Resource) -> Json:
    return {
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
    }


def _with_cached_calls(data: ClusterData) -> ClusterData:
    """Return the ports with a cache that sends each distinct API call only once."""
    if data.api_calls is None:
        return data
    return replace(data, api_calls=_CachedApiCalls(data.api_calls))


class _CachedApiCalls:
    """Caches the responses of API calls; failures are not cached."""

    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._responses: dict[bytes, Json] = {}

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the response. Raises: ExpressionFailed, DeadlinePassed."""
        key = msgspec.json.encode(request)
        with self._lock:
            if key in self._responses:
                return self._responses[key]
        answer = self._calls.call(request, deadline_ns)
        with self._lock:
            if len(self._responses) >= CLEANUP_ANSWERS_MAX:
                self._responses.clear()
            self._responses[key] = answer
        return answer
