"""A small cluster on the fake API server, with a background pool that tests drive."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.start import Background
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from tests.unit.cleanup.cluster import Recorded, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import real_ns, wait_for

Json = Any
REQUESTS = "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests"
POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
SECRETS = "/api/v1/namespaces/{}/secrets"
CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps"
MATCHED = {"team": "blue"}
PREFIX = "generate.kyverno.io/"


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        # Deadlines of calls use the real clock.
        self.now_s = real_ns() / 1e9

    def __call__(self) -> float:
        return self.now_s


def data_of(api: FakeApi) -> ClusterData:
    """Return cluster data that reads objects live from the API server."""
    client = api.client()
    objects = LiveObjects(client, LiveKinds(lambda: None, client))
    return ClusterData(objects=objects, scopes=objects)


class Term:
    """One term as the lease holder: informers run, and ``settle`` does the work."""

    def __init__(self, api: FakeApi, **changes: Any) -> None:
        self.api = api
        self.time = Time()
        self.recorded = Recorded()
        given: dict[str, Any] = {
            "client": api.client(),
            "cluster_data": data_of(api),
            "events": self.recorded,
            "metrics": self.recorded,
            "settings": Settings(namespace="kyverno"),
            "holds_lease": lambda: True,
            "health": self.recorded.health.append,
            "clock": Clock(monotonic_s=self.time),
        }
        self.dependencies = BackgroundDependencies(**{**given, **changes})
        self.background = Background(self.dependencies)

    @property
    def informers(self) -> list[Any]:
        return [
            *self.background.policies.informers,
            *self.background.generating.policies.informers,
            self.background.informer,
        ]

    def start(self) -> None:
        for informer in self.informers:
            informer.start()
            assert informer.wait_synced(60)

    def stop(self) -> None:
        self.background.generating.watches.stop()
        for informer in self.informers:
            informer.stop()

    def catch_up(self) -> None:
        """Wait until the caches have every change and have called their handlers."""
        with self.api.lock:
            newest = self.api.version
        for informer in (
            *self.informers,
            *self.background.generating.watches.informers,
        ):
            wait_for(partial(self._is_current, informer, newest))

    def _is_current(self, informer: Any, newest: int) -> bool:
        return int(informer.notified_version or 0) >= newest

    def settle(self) -> None:
        """Do the pending work until none is left."""
        while True:
            self.catch_up()
            self.background.adopt()
            done = self.background.policy_controllers.work_due()
            done += self.background.controllers.work_due()
            watches = self.background.generating.watches
            if not done and not watches._awaited:
                return
            wait_for(lambda: not watches._awaited)  # noqa: B023 - in this round

    def pass_s(self, seconds: float) -> None:
        """Let time pass, step by step, and do the work that becomes due."""
        end_s = self.time.now_s + seconds
        while self.time.now_s < end_s:
            self.time.now_s = min(end_s, self.time.now_s + max(2.0, seconds / 20))
            self.settle()


@contextmanager
def term(api: FakeApi, **changes: Any) -> Iterator[Term]:
    """Hold the lease until the block ends."""
    one = Term(api, **changes)
    one.start()
    try:
        yield one
    finally:
        one.stop()


def new_cluster(api: FakeApi) -> None:
    """Serve the kinds that the tests use, and send changes to all watches."""
    serve_kinds(api)


def rule(name: str = "r", *, sync: bool = True, **body: Json) -> Json:
    """Return a rule on labelled Secrets that generates a ConfigMap for each."""
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "out-{{request.object.metadata.name}}",
        "namespace": "{{request.object.metadata.namespace}}",
    }
    return {
        "name": name,
        "match": {
            "any": [
                {
                    "resources": {
                        "kinds": ["Secret"],
                        "selector": {"matchLabels": MATCHED},
                    }
                }
            ]
        },
        "generate": {**target, "synchronize": sync, **body},
    }


def policy(
    api: FakeApi,
    *rules: Json,
    name: str = "p",
    generation: int = 1,
    **spec: Json,
) -> Json:
    """Store a ClusterPolicy."""
    return api.put(
        f"{POLICIES}/{name}",
        apiVersion="kyverno.io/v1",
        kind="ClusterPolicy",
        metadata={"generation": generation},
        spec={"rules": list(rules), **spec},
    )


def trigger(
    api: FakeApi, name: str = "t", *, labels: Json = None, value: str = "1"
) -> Json:
    """Store a Secret in namespace ``a``."""
    return api.put(
        f"{SECRETS.format('a')}/{name}",
        apiVersion="v1",
        kind="Secret",
        metadata={
            "labels": MATCHED if labels is None else labels,
            "annotations": {"value": value},
        },
    )


def open_trigger(api: FakeApi, name: str = "t") -> Json:
    """Store a labelled ConfigMap in namespace ``a``: failures may quote it."""
    return api.put(
        f"{CONFIG_MAPS.format('a')}/{name}",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"labels": MATCHED},
    )


def of_open(one: Json) -> Json:
    """Return the rule for ConfigMaps instead of Secrets."""
    resources = {"kinds": ["ConfigMap"], "selector": {"matchLabels": MATCHED}}
    return {**one, "match": {"any": [{"resources": resources}]}}


def identity(raw: Json) -> Json:
    metadata = raw["metadata"]
    return {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata["uid"],
    }


def request(  # noqa: PLR0913 - the parts of a request
    api: FakeApi,
    raw: Json,
    *,
    name: str = "ur",
    policy: str = "p",
    rules: tuple[str, ...] = ("r",),
    deletes: bool = False,
    operation: str = "CREATE",
    kind: str = "generate",
    **fields: Json,
) -> Json:
    """Store an UpdateRequest for a trigger, as the leader does after a review."""
    spec: Json = {
        "requestType": kind,
        "policy": policy,
        "context": {"admissionRequestInfo": {"operation": operation}},
    }
    if kind == "mutate":
        spec |= {"rule": rules[0], "resource": identity(raw)}
    else:
        spec["ruleContext"] = [
            {"rule": one, "trigger": identity(raw), "deleteDownstream": deletes}
            for one in rules
        ]
    return api.put(
        f"{REQUESTS}/{name}",
        apiVersion="kyverno.io/v2",
        kind="UpdateRequest",
        spec={**spec, **fields.pop("spec", {})},
        **fields,
    )


def stored(api: FakeApi, path: str) -> Json | None:
    """Return an object, or None if it does not exist."""
    base, _, name = path.rpartition("/")
    with api.lock:
        for key, raw in api.objects.items():
            namespace = f"/namespaces/{key[1]}" if key[1] else ""
            if f"{key[0]}{namespace}/{key[2]}" == base and key[3] == name:
                return raw
    return None


def requests_left(api: FakeApi) -> list[str]:
    """Return the names of the stored requests."""
    with api.lock:
        return sorted(key[3] for key in api.objects if key[2] == "updaterequests")
