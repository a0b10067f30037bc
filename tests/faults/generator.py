"""A parent of the processes of the background path: each line starts one, forked, warm.

Takes: lines ``pool URL``, ``ending URL``, ``handing URL``, ``writer URL FOLDER`` and
``worker URL FOLDER KIND FIRST COUNT``, where KIND is the policy's. Gives: the id of
each process, one a line. May touch: processes; they end with it.

- pool: the background pool, as if it held the lease.
- ending: the same pool, which is told to end before it begins.
- handing: the same, beside another program that holds the lease.
- writer: the leader's thread that makes UpdateRequests of a journal.
- worker: reviews numbered Secrets as the webhook does, and stores those it allows, as
  the API server does then.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.start import run
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.access import at_url
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader.triggers.writer import TriggerWriter
from kyverno_mp.process.supervision.parent_death import die_with_parent
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.queues.journal import LOST, TRIGGERS, Journal, JournalReader
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.triggers.lost import LostPolicies
from kyverno_mp.webhook.triggers.sink import TriggerSink
from tests.fuzz.bench import Bench, review
from tests.unit.cleanup.cluster import Recorded
from tests.unit.webhook.cel.test_cel_policies import asked, compiled
from tests.unit.webhook.cel.test_generating_policies import Server

Json = Any
POOL_USER: Final = "system:serviceaccount:kyverno:kyverno-background-controller"
LABELS: Final = {"numbered": "yes"}
POLICY: Final = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    match:
      any:
      - resources: {kinds: [Secret], selector: {matchLabels: {numbered: "yes"}}}
    generate:
      apiVersion: v1
      kind: ConfigMap
      name: "out-{{request.object.metadata.name}}"
      namespace: a
      synchronize: true
      data: {data: {number: "{{request.object.metadata.name}}"}}
"""
CEL_POLICY: Final = """
apiVersion: policies.kyverno.io/v1beta1
kind: GeneratingPolicy
metadata: {name: p}
spec:
  matchConstraints:
    objectSelector: {matchLabels: {numbered: "yes"}}
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [secrets]
  evaluation: {synchronize: {enabled: true}}
  generate:
  - expression: >-
      generator.apply("a", [{"apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),
      "metadata": dyn({"name": "out-" + object.metadata.name}),
      "data": dyn({"number": object.metadata.name})}])
"""
POLICY_OF: Final = {"ClusterPolicy": POLICY, "GeneratingPolicy": CEL_POLICY}
_SECRETS: Final = core("secrets")
_ROOM: Final = 100_000


def folders(folder: str) -> tuple[Path, Path]:
    """Return the folders of both journals."""
    found = Path(folder) / "triggers", Path(folder) / "lost"
    for one in found:
        one.mkdir(parents=True, exist_ok=True)
    return found


def ending(url: str, *, hands_over: bool = False) -> None:
    """Do what a pool does at its end."""
    stop = threading.Event()
    stop.set()
    _work(url, stop, hands_over=hands_over)


def handing(url: str) -> None:
    """Do what a pool does at its end beside another program."""
    ending(url, hands_over=True)


def pool(url: str) -> None:
    """Work until killed."""
    _work(url, threading.Event())


def _work(url: str, stop: threading.Event, *, hands_over: bool = False) -> None:
    client = Client(Pool(at_url(url)), "pool")
    kinds = LiveKinds(lambda: None, client)
    objects = LiveObjects(client, kinds)
    cel = CelPorts(
        resources=LiveResources(lambda: client, kinds.plural_of),
        namespaces=LiveNamespaces(lambda _name: None, client),
    )
    recorded = Recorded()
    dependencies = BackgroundDependencies(
        client=client,
        cluster_data=ClusterData(objects=objects, scopes=objects, cel=cel),
        events=recorded,
        metrics=recorded,
        settings=Settings(namespace="kyverno", background_workers=2),
        holds_lease=lambda: True,
        health=recorded.health.append,
        hands_over=hands_over,
    )
    run(dependencies, stop)


def writer(url: str, folder: str) -> None:
    """Write until killed."""
    readers = [JournalReader(one) for one in folders(folder)]
    client = Client(Pool(at_url(url)), "writer")
    one = TriggerWriter(readers, client, "kyverno", lambda: 1000)
    while True:
        time.sleep(0.01 if one.step() else 0.1)


def worker(url: str, folder: str, kind: str, first: str, count: str) -> None:
    """Review and store numbered Secrets; those that are not stored are not accepted."""
    triggers, lost = folders(folder)
    records = NoRecords()
    policies = LostPolicies(
        Journal.claim(lost, _ROOM, LOST.ring_bytes), records, time.time_ns
    )
    journal = Journal.claim(triggers, _ROOM, TRIGGERS.ring_bytes)
    sink = TriggerSink(journal, records, time.time_ns, policies)
    ask = _service(kind, sink, Path(folder))
    objects = Objects(Client(Pool(at_url(url)), "worker"))
    for number in range(int(first), int(first) + int(count)):
        raw = secret(number)
        assert ask(raw, name=raw["metadata"]["name"], namespace="a")["allowed"]
        _store(objects, raw)


def _service(kind: str, sink: TriggerSink, folder: Path) -> Callable[..., Json]:
    """Return a service that reviews the creation of an object."""
    if kind == "ClusterPolicy":
        return Bench(POLICY, triggers=sink, background_user=POOL_USER).ask
    found = compiled(yaml.safe_load(CEL_POLICY), has_background=True)
    server = Server(found, folder, sink)

    def ask(raw: Json, **changes: Json) -> Json:
        request = review(raw, **changes)["request"]
        return asked(server.service, "/gpol/p", **request)

    return ask


def _store(objects: Objects, raw: Json) -> None:
    while True:
        try:
            objects.create(_SECRETS, raw)
        except DependencyError as error:
            if error.code == "kube.exists":
                return
            time.sleep(0.05)
        else:
            return


def secret(number: int) -> Json:
    """Return a trigger."""
    metadata = {
        "name": f"t{number}",
        "namespace": "a",
        "uid": f"uid-{number}",
        "labels": LABELS,
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


class NoRecords:
    """A sink that drops a worker's errors."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_of, **_by: None


def main() -> None:
    """Start processes until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    roles: dict[str, Callable[..., None]] = {
        "pool": pool,
        "ending": ending,
        "handing": handing,
        "writer": writer,
        "worker": worker,
    }
    for line in iter(sys.stdin.readline, ""):
        name, *words = line.split()
        parent = os.getpid()
        child = os.fork()
        if not child:
            die_with_parent(parent, signal.SIGKILL)
            roles[name](*words)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
