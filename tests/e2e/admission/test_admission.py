"""From `kubectl apply` of a policy to a denied request, on a real API server."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from kyverno_mp.controllers.certificates.reconcile import SECRETS
from kyverno_mp.controllers.webhook_config.options import VALIDATING
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES, remove_all
from kyverno_mp.errors import KubeNotFound, KubeRefused, KubeUnavailable
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import LEASES
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.kube.rest import Client
from tests.conformance.place import without_variable
from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.installation import policy
from tests.ports import free_ports
from tests.waiting import HANG_S, wait_for

ROOT = Path(__file__).resolve().parents[3]
CONFIG_MAPS = core("configmaps")
NAMESPACES = core("namespaces", namespaced=False)
CRDS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    namespaced=False,
)
RESOURCE_WEBHOOK = ("", "kyverno-resource-validating-webhook-cfg")
POLICY_WEBHOOK = ("", "kyverno-policy-validating-webhook-cfg")
"""A webhook that exists without any policy."""


class Pod:
    """Our service as one local process, called by URL."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self.log = folder / f"{name}.log"
        port, self.health_port = free_ports(2)
        self.url = f"https://127.0.0.1:{port}/"
        environment = {
            **without_variable(os.environ),
            "KYVERNO_MP_KUBECONFIG": str(cluster.kubeconfig),
            "KYVERNO_MP_SERVER_IP": f"127.0.0.1:{port}",
            "KYVERNO_MP_WEBHOOK_HOST": "127.0.0.1",
            "KYVERNO_MP_WEBHOOK_PORT": str(port),
            "KYVERNO_MP_HEALTH_PORT": str(self.health_port),
            "KYVERNO_MP_WEBHOOK_WORKERS": "1",
            "KYVERNO_MP_POD_NAME": name,
            "KYVERNO_MP_TLS_KEY_ALGORITHM": "ECDSA",
            "KYVERNO_MP_RUNTIME_DIR": str(folder / name),
            "PYTHONPATH": str(ROOT),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kyverno_mp", "serve"],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(HANG_S)


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    client = Client(Pool(from_kubeconfig(cluster.kubeconfig)), "kyverno-mp-test")
    yield client
    client.close()


@pytest.fixture(scope="module")
def objects(client: Client) -> Objects:
    return Objects(client)


@pytest.fixture(scope="module")
def pod(
    cluster: Cluster,
    api: Api,
    client: Client,
    objects: Objects,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pod]:
    install_crds(api)
    if objects.find(NAMESPACES, ("", "kyverno")) is None:
        objects.create(NAMESPACES, {"metadata": {"name": "kyverno"}})
    pod = Pod(cluster, "one", tmp_path_factory.mktemp("pod"))
    try:
        # An earlier product may have left its webhooks.
        wait_for(lambda: is_registered(objects, pod, POLICY_WEBHOOK))
        yield pod
    finally:
        pod.stop()
        remove_all(client, objects)
        print(pod.log.read_text()[-8000:])


@pytest.fixture(autouse=True)
def _no_policy_left(client: Client, objects: Objects) -> Iterator[None]:
    """Ensure that no policy of a test is in force in the next one."""
    yield
    for raw in client.get(RULE_POLICIES.cluster.collection(""))["items"]:
        objects.delete(RULE_POLICIES.cluster, ("", raw["metadata"]["name"]))
    wait_for(lambda: _is_let_in(objects))


def holder(objects: Objects) -> str:
    lease = objects.find(LEASES, ("kyverno", "kyverno")) or {}
    return str((lease.get("spec") or {}).get("holderIdentity"))


def is_registered(
    objects: Objects, pod: Pod, name: tuple[str, str] = RESOURCE_WEBHOOK
) -> bool:
    found = objects.find(RESOURCES[VALIDATING], name) or {}
    urls = [one["clientConfig"]["url"] for one in found.get("webhooks") or ()]
    return bool(urls) and all(url.startswith(pod.url) for url in urls)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "labels": labels}}


def is_denied(objects: Objects, raw: dict[str, Any]) -> bool:
    try:
        objects.create(CONFIG_MAPS, raw)
    except KubeRefused as error:
        return "is needed" in error.message
    objects.delete(CONFIG_MAPS, ("default", raw["metadata"]["name"]))
    return False


def is_ready(objects: Objects, name: str) -> bool:
    """Return whether the status reports that a policy is in force."""
    found = objects.find(RULE_POLICIES.cluster, ("", name)) or {}
    conditions = (found.get("status") or {}).get("conditions") or []
    return any(one["status"] == "True" for one in conditions)


def test_created_policy_takes_effect_and_deleted_policy_loses_it(
    pod: Pod, objects: Objects
) -> None:
    assert pod.process.poll() is None
    objects.create(RULE_POLICIES.cluster, policy("one", "team", "ConfigMap"))
    wait_for(lambda: is_denied(objects, config_map("m")))
    assert not is_denied(objects, config_map("m", team="x"))
    objects.delete(RULE_POLICIES.cluster, ("", "one"))
    wait_for(lambda: not is_denied(objects, config_map("m")))


def test_ready_policy_is_already_enforced(pod: Pod, objects: Objects) -> None:
    """Clients that wait for Ready rely on it: no later request bypasses the policy."""
    assert pod.process.poll() is None
    objects.create(RULE_POLICIES.cluster, policy("ready", "team", "Pod", "ConfigMap"))
    wait_for(lambda: is_ready(objects, "ready"))
    assert is_denied(objects, config_map("m"))
    found = objects.find(RULE_POLICIES.cluster, ("", "ready"))
    assert found is not None
    assert found["status"]["rulecount"]["validate"] == 1
    objects.delete(RULE_POLICIES.cluster, ("", "ready"))
    wait_for(lambda: not is_denied(objects, config_map("m")))


def test_audit_log_names_the_policy_that_denied(
    pod: Pod, objects: Objects, shared_plane: ControlPlane
) -> None:
    assert pod.process.poll() is None
    objects.create(RULE_POLICIES.cluster, policy("told", "team", "ConfigMap"))
    wait_for(lambda: is_denied(objects, config_map("told-of")))
    creations = [
        one for one in shared_plane.audit.asked(writes=True) if one.name == "told-of"
    ]
    key = "validate.kyverno.svc-fail/policies"
    told = [one.annotations[key] for one in creations if key in one.annotations]
    assert told
    assert all(text.startswith("told/") and text.endswith("=fail") for text in told)


def test_a_preview_says_what_the_cluster_does(
    pod: Pod, objects: Objects, cluster: Cluster, tmp_path: Path
) -> None:
    """Each of a hundred creations, with the facts that were exported before."""
    assert pod.process.poll() is None
    objects.create(NAMESPACES, space("low"))
    objects.create(NAMESPACES, space("high"))
    objects.create(CONFIG_MAPS, {**config_map("denied"), "data": {"team": "b"}})
    policies = previewed_policies()
    for each in policies:
        objects.create(RULE_POLICIES.cluster, each)
    for each in policies:
        wait_for(partial(is_ready, objects, each["metadata"]["name"]))
    for name, documents in (("p", policies), ("head", list(previewed_objects()))):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    (tmp_path / "base.yaml").write_text("")
    facts = tmp_path / "facts.yaml"
    command(cluster, "facts", tmp_path / "p.yaml", "-o", facts)
    sides = ("--base", tmp_path / "base.yaml", "--head", tmp_path / "head.yaml")
    flags = ("--facts", facts, "--output-format", "json", "--fail-on", "none")
    preview = json.loads(command(cluster, "apply", tmp_path / "p.yaml", *sides, *flags))
    listed: dict[str, set[str]] = {"denied": set(), "mutated": set()}
    for row in preview["list"]:
        listed[row["change"]].add(row["object"])
    happened: dict[str, set[str]] = {"denied": set(), "mutated": set()}
    for raw in previewed_objects():
        path = f"ConfigMap {raw['metadata']['namespace']}/{raw['metadata']['name']}"
        try:
            stored = objects.create(CONFIG_MAPS, raw)
        except KubeRefused as error:
            if "is needed" not in error.message:
                raise
            happened["denied"].add(path)
            continue
        if stored["metadata"].get("labels") != raw["metadata"]["labels"]:
            happened["mutated"].add(path)
    assert listed == happened
    assert all(10 < len(paths) < 90 for paths in happened.values())


def space(level: str) -> dict[str, Any]:
    return {"metadata": {"name": f"level-{level}", "labels": {"level": level}}}


def previewed_policies() -> list[dict[str, Any]]:
    """Policies that read a Namespace's labels and a ConfigMap, and one that mutates."""
    strict = policy("strict", "owner", "ConfigMap")
    (selected,) = strict["spec"]["rules"][0]["match"]["any"]
    selected["resources"]["namespaceSelector"] = {"matchLabels": {"level": "high"}}
    reading = policy("reading", "app", "ConfigMap")
    (rule,) = reading["spec"]["rules"]
    named = {"name": "denied", "namespace": "default"}
    rule["context"] = [{"name": "denied", "configMap": named}]
    condition = {
        "key": "{{ request.object.metadata.labels.team || '' }}",
        "operator": "Equals",
        "value": "{{ denied.data.team }}",
    }
    rule["validate"] = {
        "failureAction": "Enforce",
        "message": "another team is needed",
        "deny": {"conditions": {"any": [condition]}},
    }
    adding = policy("adding", "app", "ConfigMap")
    (rule,) = adding["spec"]["rules"]
    del rule["validate"]
    labels = {"+(app)": "{{ request.namespace }}"}
    rule["mutate"] = {"patchStrategicMerge": {"metadata": {"labels": labels}}}
    return [strict, reading, adding]


def previewed_objects() -> Iterator[dict[str, Any]]:
    chance = random.Random(3)
    for number in range(100):
        labels = {
            label: chance.choice("abc")
            for label in ("team", "owner", "app")
            if chance.random() < 0.6
        }
        space = chance.choice(["level-low", "level-high"])
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"c-{number}", "namespace": space, "labels": labels},
        }


def command(cluster: Cluster, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", *map(str, arguments)],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_invalid_policy_is_denied_at_admission(pod: Pod, objects: Objects) -> None:
    assert pod.process.poll() is None
    bad = policy("bad", "team", "ConfigMap")
    bad["spec"]["rules"][0]["validate"]["pattern"] = {"a": "{{ nowhere.x }}"}
    name = ("", "kyverno-policy-validating-webhook-cfg")
    wait_for(lambda: objects.find(RESOURCES[VALIDATING], name))

    def refused() -> bool:
        try:
            objects.create(RULE_POLICIES.cluster, bad)
        except KubeRefused as error:
            return "validate-policy.kyverno.svc" in error.message
        objects.delete(RULE_POLICIES.cluster, ("", "bad"))
        return False

    wait_for(refused)


def test_rules_read_live_cluster_data(pod: Pod, objects: Objects) -> None:
    """An apiCall, and a ConfigMap that is not labelled for caching."""
    assert pod.process.poll() is None
    objects.create(CONFIG_MAPS, {**config_map("allowed"), "data": {"team": "x"}})
    live = policy("live", "team", "ConfigMap")
    rule = live["spec"]["rules"][0]
    path = "/api/v1/namespaces/default"
    rule["context"] = [
        {"name": "cm", "configMap": {"name": "allowed", "namespace": "default"}},
        {"name": "ns", "apiCall": {"urlPath": path, "jmesPath": "metadata.name"}},
    ]
    rule["validate"]["message"] = "is needed: {{ cm.data.team }} of {{ ns }}"
    labels = {"team": "{{ cm.data.team }}", "namespace": "{{ ns }}"}
    rule["validate"]["pattern"] = {"metadata": {"labels": labels}}
    objects.create(RULE_POLICIES.cluster, live)
    wait_for(lambda: is_denied(objects, config_map("m")))
    assert not is_denied(objects, config_map("m", team="x", namespace="default"))


def test_deleted_objects_are_restored(pod: Pod, objects: Objects) -> None:
    assert pod.process.poll() is None
    objects.create(RULE_POLICIES.cluster, policy("two", "team", "ConfigMap"))
    wait_for(lambda: is_denied(objects, config_map("m")))
    assert objects.delete(RESOURCES[VALIDATING], RESOURCE_WEBHOOK)
    # The API server itself learns of it a moment later, so its status is not enough.
    wait_for(lambda: objects.find(RESOURCES[VALIDATING], RESOURCE_WEBHOOK))
    wait_for(lambda: is_denied(objects, config_map("m")))
    found = objects.find(RESOURCES[VALIDATING], RESOURCE_WEBHOOK)
    assert found is not None
    objects.replace(RESOURCES[VALIDATING], {**found, "webhooks": []})
    wait_for(lambda: is_denied(objects, config_map("m")))


def test_lost_certificate_is_reissued_and_served(pod: Pod, objects: Objects) -> None:
    """The new authority and the new leaf take effect without a restart.

    The API server trusts the served certificate all the time.
    """
    assert pod.process.poll() is None
    objects.create(RULE_POLICIES.cluster, policy("three", "team", "ConfigMap"))
    # An earlier denial may come from the webhook of a policy that is being deleted.
    wait_for(lambda: is_ready(objects, "three"))
    name = "kyverno-svc.kyverno.svc.kyverno-tls-"
    for which in ("ca", "pair"):
        assert objects.delete(SECRETS, ("kyverno", name + which))
    until = time.monotonic() + 25
    while time.monotonic() < until:
        assert is_denied(objects, config_map("m"))
        time.sleep(0.2)
    assert objects.find(SECRETS, ("kyverno", name + "pair"))


def test_scaling_a_custom_resource_is_reviewed(pod: Pod, objects: Objects) -> None:
    """The review's object is a Scale, which does not name the scaled kind."""
    assert pod.process.poll() is None
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
    }
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "gadgetries.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgetries", "kind": "Gadgetry"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                    "subresources": {"scale": scale, "status": {}},
                }
            ],
        },
    }
    gadgetries = Resource(group="example.com", version="v1", plural="gadgetries")
    document = policy("scaled", "team", "Gadgetry/scale", "Gadgetry/status")
    few = {
        "key": "{{ request.object.spec.replicas || `0` }}",
        "operator": "GreaterThan",
    }
    document["spec"]["rules"][0]["validate"] = {
        "failureAction": "Enforce",
        "allowExistingViolations": False,
        "message": "less is needed",
        "deny": {"conditions": {"all": [{**few, "value": 5}]}},
    }
    key = ("default", "g")
    objects.create(CRDS, definition)
    try:
        raw = {
            "apiVersion": "example.com/v1",
            "kind": "Gadgetry",
            "metadata": {"name": "g", "namespace": "default"},
        }
        wait_for(lambda: _is_made(objects, gadgetries, raw))
        objects.create(RULE_POLICIES.cluster, document)

        def scaled(replicas: int, part: str = "scale") -> bool:
            try:
                objects.merge(gadgetries, key, {"spec": {"replicas": replicas}}, part)
            except KubeRefused as error:
                return "less is needed" not in error.message
            return True

        wait_for(lambda: not scaled(9))
        assert scaled(3)
        # The plural does not begin with the kind either.
        objects.merge(gadgetries, key, {"status": {"replicas": 3}}, "status")
        assert scaled(9, "")
    finally:
        objects.delete(CRDS, ("", "gadgetries.example.com"))


def _is_let_in(objects: Objects) -> bool:
    try:
        return not is_denied(objects, config_map("m"))
    except KubeUnavailable:
        return False


def _denied_or_untrusted(objects: Objects) -> bool:
    try:
        return is_denied(objects, config_map("m"))
    except KubeUnavailable:
        # failurePolicy Fail, while the API server has another address of our service.
        return False


def _is_made(objects: Objects, resource: Resource, raw: dict[str, Any]) -> bool:
    try:
        objects.create(resource, raw)
    except (KubeNotFound, KubeRefused):
        return False
    return True


def _is_created(objects: Objects, raw: dict[str, Any]) -> bool:
    try:
        objects.create(RULE_POLICIES.cluster, raw)
    except KubeUnavailable:
        return False
    return True


def test_resumed_lease_holder_writes_nothing(
    cluster: Cluster, pod: Pod, objects: Objects, tmp_path: Path
) -> None:
    """After SIGSTOP of the holder, another takes over; the old one stops writing."""
    # The previous test may have changed the authority a moment ago.
    wait_for(lambda: _is_created(objects, policy("lease", "team", "ConfigMap")))
    wait_for(lambda: is_denied(objects, config_map("m")))
    assert holder(objects) == "one"
    assert is_registered(objects, pod)
    supervisor = psutil.Process(pod.process.pid)
    roles = [supervisor, *supervisor.children()]
    processes = [supervisor, *supervisor.children(recursive=True)]
    two = Pod(cluster, "two", tmp_path)
    try:
        for process in processes:
            process.suspend()
        wait_for(lambda: holder(objects) == "two")
        wait_for(lambda: is_registered(objects, two))
        wait_for(lambda: _denied_or_untrusted(objects))
        for process in processes:
            process.resume()
        until = time.monotonic() + 12
        while time.monotonic() < until:
            assert is_registered(objects, two)
            assert holder(objects) == "two"
            time.sleep(0.05)
        # On a slow machine the stop lasts longer than Gunicorn's worker timeout: the
        # arbiter then replaces the worker, as intended.
        assert all(process.is_running() for process in roles)
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        two.stop()
    assert holder(objects) != "two", "a planned end gives the lease back"
    wait_for(lambda: holder(objects) == "one")
    wait_for(lambda: is_registered(objects, pod))
    assert is_denied(objects, config_map("m"))
