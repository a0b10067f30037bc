"""A small cluster on the fake API server with a clean-up controller."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.start import Cleanup, run
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.kube.rest import Client
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import Family
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

Json = Any
CLUSTER = "/apis/kyverno.io/v2/clustercleanuppolicies"
NAMESPACED = "/apis/kyverno.io/v2/namespaces/{}/cleanuppolicies"
CEL = "/apis/policies.kyverno.io/v1beta1"
_ALL_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def serve_kinds(api: FakeApi, *more: Json) -> None:
    """Serve ConfigMaps, Secrets, Pods, Namespaces, Events, and ``more``."""
    core = [
        resource("configmaps", "ConfigMap"),
        resource("secrets", "Secret"),
        resource("pods", "Pod"),
        resource("namespaces", "Namespace", scope="Cluster"),
        resource("events", "Event", verbs=["list", "watch"]),
    ]
    api.answers["/api"] = _groups([("", "v1", core)])
    api.answers["/apis"] = _groups(list(more))


def resource(
    plural: str,
    kind: str,
    *,
    scope: str = "Namespaced",
    verbs: Sequence[str] = _ALL_VERBS,
) -> Json:
    return {
        "resource": plural,
        "responseKind": {"group": "", "version": "v1", "kind": kind},
        "scope": scope,
        "verbs": list(verbs),
    }


def _groups(groups: Sequence[tuple[str, str, list[Json]]]) -> Json:
    return {
        "kind": "APIGroupDiscoveryList",
        "items": [
            {
                "metadata": {"name": group},
                "versions": [
                    {"version": version, "resources": resources, "freshness": "Current"}
                ],
            }
            for group, version, resources in groups
        ],
    }


def at(second: float) -> str:
    """Return a time on the first day of 2026 in the API server's format."""
    moment = datetime.fromtimestamp(1767225600 + int(second), UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Recorded:
    """Records events and metrics of the controller; an EventSink and Metrics."""

    events: list[EventInfo] = field(default_factory=list)
    counts: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    health: list[Sequence[str]] = field(default_factory=list)
    observed: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, info: EventInfo) -> bool:
        with self.lock:
            self.events.append(info)
        return True

    def count(self, family: Family, labels: tuple[str, ...]) -> None:
        assert len(labels) == len(family.labels)
        with self.lock:
            key = (family.name, labels)
            self.counts[key] = self.counts.get(key, 0) + 1

    def hold(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        assert len(labels) == len(family.labels)
        with self.lock:
            self.counts[family.name, labels] = value

    def observe(self, family: Family, labels: tuple[str, ...], seconds: float) -> None:
        assert family.kind == "histogram"
        assert len(labels) == len(family.labels)
        with self.lock:
            self.observed.append((family.name, labels, seconds))

    def total(self, name: str) -> float:
        return sum(value for (one, _), value in self.counts.items() if one == name)

    def notes(self) -> list[str]:
        return [one.note for one in self.events]


def dependencies_of(
    api: FakeApi, recorded: Recorded, clock: Clock, **changes: Any
) -> CleanupDependencies:
    """Return the dependencies of a lease holder with all permissions."""
    client = changes.pop("client", None) or api.client()
    return dependencies_with(client, recorded, clock, **changes)


def dependencies_with(
    client: Client, recorded: Recorded, clock: Clock, **changes: Any
) -> CleanupDependencies:
    """Return the dependencies of a lease holder that uses the given client."""
    given: dict[str, Any] = {
        "client": client,
        "cluster_data": ClusterData(),
        "events": recorded,
        "metrics": recorded,
        "settings": Settings(),
        "holds_lease": lambda: True,
        "health": recorded.health.append,
        "clock": clock,
    }
    return CleanupDependencies(**{**given, **changes})


class Controller:
    """Clean-up driven by a test: informers run, and ``settle`` does the work."""

    def __init__(self, api: FakeApi, dependencies: CleanupDependencies) -> None:
        self.api = api
        self.cleanup = Cleanup(dependencies)

    def start(self) -> None:
        for informer in self._of_policies():
            informer.start()
            assert informer.wait_synced(60)
        self.cleanup.ttl.refresh()
        self.catch_up()

    def stop(self) -> None:
        for informer in self._of_policies():
            informer.stop()
        self.cleanup.ttl.watches.stop()

    def _of_policies(self) -> list[Any]:
        return [*self.cleanup.exceptions.informers, *self.cleanup.informers]

    def catch_up(self) -> None:
        """Wait until every cache has the newest version of each object."""
        watches = self.cleanup.ttl.watches.all()
        informers: list[Any] = [
            *self._of_policies(),
            *watches.values(),
        ]
        for informer in informers:
            assert informer.wait_synced(60)
            wait_for(partial(self._is_current, informer))

    def settle(self) -> None:
        """Do the pending work until none is left."""
        while True:
            self.catch_up()
            done = self.cleanup.controllers.work_due()
            done += self.cleanup.ttl.timers.work_due()
            if not done:
                return

    def _is_current(self, informer: Any) -> bool:
        scope = informer.scope
        base = scope.resource.collection().rsplit("/", 1)[0]
        with self.api.lock:
            stored = {
                (key[1], key[3]): raw["metadata"]["resourceVersion"]
                for key, raw in self.api.objects.items()
                if (key[0], key[2]) == (base, scope.resource.plural)
                and scope.namespace in ("", key[1])
                and not raw["metadata"].get("deletionTimestamp")
                and (
                    not scope.label_selector
                    or scope.label_selector in (raw["metadata"].get("labels") or {})
                )
            }
        known = {key: informer.version_of(key) for key in informer.snapshot()}
        return known == stored


@contextmanager
def controller(api: FakeApi, dependencies: CleanupDependencies) -> Iterator[Controller]:
    """Create a controller that a test drives."""
    one = Controller(api, dependencies)
    one.start()
    try:
        yield one
    finally:
        one.stop()


@contextmanager
def running_cleanup(dependencies: CleanupDependencies) -> Iterator[threading.Thread]:
    """Run the real clean-up role in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(dependencies, stop), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(HANG_S)
        assert not thread.is_alive()


def policy(  # noqa: PLR0913 - the parts of an object
    api: FakeApi,
    name: str = "p",
    *,
    namespace: str = "",
    created_s: float = 0,
    status: Json = None,
    annotations: Json = None,
    generation: int = 1,
    **spec: Json,
) -> Json:
    """Store a policy that deletes ConfigMaps once a minute by default."""
    kinds = [{"resources": {"kinds": ["ConfigMap"]}}]
    given = {"match": {"any": kinds}, "schedule": "* * * * *", **spec}
    base = NAMESPACED.format(namespace) if namespace else CLUSTER
    metadata = {
        "creationTimestamp": at(created_s),
        "generation": generation,
        "annotations": annotations or {},
    }
    return api.put(
        f"{base}/{name}",
        apiVersion="kyverno.io/v2",
        kind="CleanupPolicy" if namespace else "ClusterCleanupPolicy",
        metadata=metadata,
        spec=given,
        status=status or {},
    )


def deleting(
    api: FakeApi,
    name: str = "d",
    *,
    namespace: str = "",
    resources: Sequence[str] = ("configmaps",),
    status: Json = None,
    annotations: Json = None,
    **spec: Json,
) -> Json:
    """Store a DeletingPolicy that deletes ConfigMaps once a minute by default."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": list(resources)}
    given = {
        "matchConstraints": {"resourceRules": [rule]},
        "schedule": "* * * * *",
        **spec,
    }
    base = f"{CEL}/namespaces/{namespace}/namespaceddeletingpolicies"
    metadata = {
        "creationTimestamp": at(0),
        "generation": 1,
        "annotations": annotations or {},
    }
    return api.put(
        f"{base if namespace else f'{CEL}/deletingpolicies'}/{name}",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="NamespacedDeletingPolicy" if namespace else "DeletingPolicy",
        metadata=metadata,
        spec=given,
        status=status or {},
    )


def deleting_status(api: FakeApi, name: str = "d", namespace: str = "") -> Json:
    plural = "namespaceddeletingpolicies" if namespace else "deletingpolicies"
    with api.lock:
        return api.objects[CEL, namespace, plural, name].get("status") or {}


def config_map(  # noqa: PLR0913 - the parts of an object
    api: FakeApi,
    name: str,
    *,
    namespace: str = "a",
    created_s: float = 0,
    plural: str = "configmaps",
    labels: Json = None,
    annotations: Json = None,
    **fields: Json,
) -> Json:
    metadata = {
        "creationTimestamp": at(created_s),
        "labels": labels or {},
        "annotations": annotations or {},
    }
    path = f"/api/v1/namespaces/{namespace}/{plural}/{name}"
    return api.put(path, metadata=metadata, **fields)


def names(api: FakeApi, plural: str = "configmaps") -> list[str]:
    """Return the ``namespace/name`` of all existing objects."""
    with api.lock:
        return sorted(f"{key[1]}/{key[3]}" for key in api.objects if key[2] == plural)


def status_of(api: FakeApi, name: str = "p", namespace: str = "") -> Json:
    plural = "cleanuppolicies" if namespace else "clustercleanuppolicies"
    with api.lock:
        key = ("/apis/kyverno.io/v2", namespace, plural, name)
        return api.objects[key].get("status") or {}


def condition_of(api: FakeApi, name: str = "p", namespace: str = "") -> Json:
    conditions = status_of(api, name, namespace).get("conditions") or []
    return next((one for one in conditions if one["type"] == "CleanedUp"), {})


def once(api: FakeApi, pattern: str, act: Callable[[], Any]) -> Callable[[], bool]:
    """Return a held lease that calls ``act`` after the first matching request.

    The controller checks its lease before each write, so ``act`` runs between that
    request and the next write.
    """
    left = [act]

    def holds() -> bool:
        if left and api.count(pattern):
            left.pop()()
        return True

    return holds


def held_for(writes: int) -> Callable[[], bool]:
    """Return a lease that is lost after ``writes`` checks."""
    left = [writes]

    def holds() -> bool:
        left[0] -= 1
        return left[0] >= 0

    return holds
