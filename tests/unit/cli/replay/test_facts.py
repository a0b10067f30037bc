"""Facts of a cluster decide what a recording alone leaves open, and hold no Secret.

A failure means: a replay claims a verdict that the cluster would not give, or a file
for a pipeline has a Secret in it.
"""

import stat
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.leader.cluster_data import values_of
from kyverno_mp.policy.reading.load import load
from tests.unit.cli.conftest import Command
from tests.unit.cli.replay.test_replay import (
    VALIDATE,
    Scene,
    denies,
    needs_label,
    policy,
    review,
)
from tests.unit.cli.replay.test_replay_cel import validating
from tests.unit.kube.fake_api import FakeApi

CEL_PATH = "/vpol/fail/p"
SECRET = "hunter2"
SERVICE = "/api/v1/namespaces/apps/services/s"
HEAD = """\
apiVersion: kyverno-mp.io/v1alpha1
kind: ClusterFacts
metadata: {name: facts}
spec: {configMaps: 5, documents: 0}
"""


def context(**entry: Any) -> dict[str, Any]:
    return {"context": [{"name": "found", **entry}]}


def reads(key: str, **entry: Any) -> dict[str, Any]:
    """Return a ClusterPolicy that denies if the entry is "bad"."""
    return policy("p", denies(f"{{{{ {key} }}}}", "bad", **context(**entry)))


def entry(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "GlobalContextEntry",
        "metadata": {"name": name},
        "spec": spec,
    }


CONFIG_MAPS = {"version": "v1", "resource": "configmaps", "namespace": "ops"}
READS = {
    "a ConfigMap": reads("found.data.a", configMap={"name": "one", "namespace": "ops"}),
    "a ConfigMap of the request's namespace": reads(
        "found.data.a", configMap={"name": "own", "namespace": "{{request.namespace}}"}
    ),
    "an API call for a ConfigMap": reads(
        "found.data.a", apiCall={"urlPath": "/api/v1/namespaces/ops/configmaps/one"}
    ),
    "an API call for a Namespace": reads(
        "found.metadata.annotations.a",
        apiCall={"urlPath": "/api/v1/namespaces/{{request.namespace}}"},
    ),
    "an entry with objects": reads(
        "found[0].data.a", globalReference={"name": "objects"}
    ),
    "a projection": reads("found", globalReference={"name": "objects.first"}),
    "an entry with a call": reads("found.data.a", globalReference={"name": "called"}),
    "a ConfigMap in CEL": validating(
        "p", 'resource.Get("v1", "configmaps", "ops", "one").data.a != "bad"'
    ),
    "a ConfigMap of the object's namespace in CEL": validating(
        "p",
        'resource.Get("v1", "configmaps", object.metadata.namespace, "own").data.a'
        ' != "bad"',
    ),
    "the Namespace in CEL": validating(
        "p", 'namespaceObject.metadata.annotations.a != "bad"'
    ),
    "an entry in CEL": validating(
        "p", 'globalContext.Get("objects", "first") != "bad"'
    ),
}


def fill(api: FakeApi, value: str) -> None:
    """Store a cluster in which each read gives the value."""
    api.put("/api/v1/namespaces/apps", metadata={"annotations": {"a": value}})
    api.put("/api/v1/namespaces/ops/configmaps/one", data={"a": value})
    api.put("/api/v1/namespaces/apps/configmaps/own", data={"a": value})
    api.put("/api/v1/namespaces/apps/configmaps/other", data={"a": "not named"})
    api.put("/api/v1/namespaces/apps/secrets/s", data={"a": SECRET})
    names = (("configmaps", "ConfigMap"), ("secrets", "Secret"))
    api.answers["/api/v1"] = {
        "resources": [
            {"name": name, "kind": kind, "namespaced": True} for name, kind in names
        ]
    }
    projection = {"name": "first", "jmesPath": "[0].data.a"}
    store(
        api,
        entry("objects", kubernetesResource=CONFIG_MAPS, projections=[projection]),
        entry("called", apiCall={"urlPath": "/api/v1/namespaces/ops/configmaps/one"}),
    )


def store(api: FakeApi, *entries: dict[str, Any]) -> None:
    for raw in entries:
        base = "/apis/kyverno.io/v2beta1/globalcontextentries"
        api.put(f"{base}/{raw['metadata']['name']}", **raw)


@pytest.fixture
def scene(tmp_path: Path, command: Command) -> Scene:
    return Scene(tmp_path, command)


def export(command: Command, folder: Path, *arguments: object) -> Path:
    file = folder / "facts.yaml"
    done = command("facts", *arguments, "-o", file)
    assert done.code == 0, done.err
    return file


def record(scene: Scene, document: dict[str, Any]) -> None:
    path = VALIDATE if document["kind"] == "ClusterPolicy" else CEL_PATH
    raw = review()
    raw["object"]["metadata"]["namespace"] = "apps"
    scene.record((path, raw), labels={"team": "a"})


@pytest.mark.parametrize("value", ["bad", "good"])
@pytest.mark.parametrize("name", READS)
def test_facts_decide(
    scene: Scene, api: FakeApi, command: Command, name: str, value: str
) -> None:
    fill(api, value)
    file = scene.policies("p", READS[name])
    record(scene, READS[name])
    assert scene.changes(file) == {"undecidable": 1}
    facts = export(command, scene.folder, file)
    wanted = "denied" if value == "bad" else "unchanged"
    assert scene.changes(file, "--facts", facts) == {wanted: 1}


@pytest.mark.parametrize("name", ["a ConfigMap", "a ConfigMap in CEL"])
def test_object_that_does_not_exist(
    scene: Scene, api: FakeApi, command: Command, name: str
) -> None:
    """The rule fails, as in the cluster, and the request is denied."""
    fill(api, "good")
    api.remove("/api/v1/namespaces/ops/configmaps/one")
    file = scene.policies("p", READS[name])
    record(scene, READS[name])
    facts = export(command, scene.folder, file)
    assert scene.changes(file, "--facts", facts) == {"denied": 1}


OPEN = {
    "a computed name": reads(
        "found.data.a", configMap={"name": "x-{{request.name}}", "namespace": "ops"}
    ),
    "an object that was not exported": reads(
        "found.data.a", configMap={"name": "late", "namespace": "ops"}
    ),
    "a list": reads("found", apiCall={"urlPath": "/api/v1/configmaps"}),
    "Secrets": reads("found[0].data.a", globalReference={"name": "secrets"}),
    "a list that an entry has": reads(
        "found.items[0].kind",
        apiCall={"urlPath": "/api/v1/namespaces/ops/configmaps"},
    ),
    "a list in CEL": validating(
        "p", 'resource.List("v1", "configmaps", "ops").items.size() == 0'
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_the_facts_lack_stays_open(
    scene: Scene, api: FakeApi, command: Command, name: str
) -> None:
    fill(api, "good")
    reference = {"version": "v1", "resource": "secrets"}
    store(api, entry("secrets", kubernetesResource=reference))
    record(scene, OPEN[name])
    exported = OPEN[name] if "exported" not in name else needs_label("p", "a")
    facts = export(command, scene.folder, scene.policies("before", exported))
    file = scene.policies("p", OPEN[name])
    assert scene.changes(file, "--facts", facts) == {"undecidable": 1}


@pytest.mark.parametrize(
    "spec",
    [
        {"kubernetesResource": {"version": "v1", "resource": "secrets"}},
        {"apiCall": {"urlPath": "/api/v1/secrets"}},
        {"apiCall": {"urlPath": "/api/v1/namespaces/apps/%73ecrets/s"}},
    ],
)
def test_no_secret_is_exported(
    api: FakeApi, command: Command, spec: dict[str, Any]
) -> None:
    fill(api, "good")
    store(api, entry("wanted", **spec))
    done = command("facts")
    assert done.code == 0
    assert SECRET not in done.out
    assert "left out: GlobalContextEntry wanted: Secrets are never exported" in done.err


def test_entry_that_cannot_be_read_is_named(api: FakeApi, command: Command) -> None:
    fill(api, "good")
    reference = {"version": "v1", "resource": "unknown"}
    service = {"method": "GET", "service": {"url": "https://example.com"}}
    store(
        api,
        entry("missing", kubernetesResource=reference),
        entry("service", apiCall=service),
        entry("proxy", apiCall={"urlPath": f"{SERVICE}/proxy/a"}),
        entry("same", apiCall={"urlPath": "/api/v1/namespaces/ops/configmaps"}),
    )
    done = command("facts")
    assert done.code == 0
    assert "GlobalContextEntry missing: v1 has no resource unknown" in done.err
    assert "GlobalContextEntry service: only GET calls" in done.err
    assert "GlobalContextEntry proxy: only GET calls" in done.err
    assert "GlobalContextEntry same: another entry reads the same path" in done.err
    assert not [path for _, path, _ in api.requests if "/proxy" in path]


def test_names_come_from_the_clusters_policies(api: FakeApi, command: Command) -> None:
    fill(api, "good")
    raw = READS["a ConfigMap"]
    api.put("/apis/kyverno.io/v1/clusterpolicies/p", **raw)
    done = command("facts")
    documents = [one.raw for one in load(done.out)]
    config_maps = [raw for raw in documents if raw["kind"] == "ConfigMap"]
    assert [raw["metadata"]["name"] for raw in config_maps] == ["one"]


@pytest.mark.parametrize(
    ("honoured", "change"),
    [("*", "unchanged"), ("apps", "unchanged"), ("other", "denied"), ("", "denied")],
)
def test_honoured_exceptions_apply(
    scene: Scene, api: FakeApi, command: Command, honoured: str, change: str
) -> None:
    """By default a service honours none: anybody could write one."""
    api.put(
        "/apis/kyverno.io/v2/namespaces/apps/policyexceptions/e",
        spec={
            "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        },
    )
    scene.record((VALIDATE, review()))
    file = scene.policies("p", needs_label("p", "app"))
    flags = ("--exception-namespace", honoured) if honoured else ()
    facts = export(command, scene.folder, file, *flags)
    assert scene.changes(file, "--facts", facts) == {change: 1}


def test_a_service_without_a_cluster_reads_the_same_file(
    scene: Scene, api: FakeApi, command: Command
) -> None:
    fill(api, "good")
    file = export(command, scene.folder, scene.policies("p", READS["a ConfigMap"]))
    values = values_of([one.raw for one in load(file.read_bytes())])
    assert values["configmaps"]["ops/one"]["data"] == {"a": "good"}
    assert values["globalcontext"]["objects/first"] == {"data": "good"}
    assert values["globalcontext"]["called"]["data"]["data"] == {"a": "good"}
    assert values["namespaces"]["other"] == {"team": "b"}


def test_only_the_owner_reads_the_file(
    scene: Scene, api: FakeApi, command: Command
) -> None:
    file = scene.folder / "facts.yaml"
    file.write_text("old")
    file.chmod(0o644)
    export(command, scene.folder)
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
    target, link = scene.folder / "elsewhere", scene.folder / "link.yaml"
    target.write_text("kept")
    link.symlink_to(target)
    assert command("facts", "-o", link).code == 0
    assert target.read_text() == "kept"
    folder = scene.folder / "folder"
    folder.mkdir()
    assert command("facts", "-o", folder).code == 1
    assert folder.is_dir()
    assert api.requests


def test_file_that_ends_early_is_rejected(
    scene: Scene, api: FakeApi, command: Command
) -> None:
    """What it lacks would seem not to exist."""
    fill(api, "good")
    file = scene.policies("p", READS["a ConfigMap"])
    record(scene, READS["a ConfigMap"])
    facts = export(command, scene.folder, file)
    documents = facts.read_text().split("---\n")
    for count in range(1, len(documents)):
        facts.write_text("---\n".join(documents[:count]))
        done = scene.replay(file, "--facts", facts)
        assert done.code == 1
        assert "not complete" in done.err


def test_no_policies_are_an_error(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert "no policies in" in command("facts", tmp_path / "empty").err
    assert command("facts", tmp_path / "gone").code == 1
    assert not api.requests


def test_names_in_patterns_and_other_namespaces_are_not_read(
    api: FakeApi, command: Command, scene: Scene
) -> None:
    """Only context entries read ConfigMaps; a Policy reads its own namespace."""
    fill(api, "good")
    volume = {"configMap": {"name": "other", "namespace": "apps"}}
    own = reads("found.data.a", configMap={"name": "own"})
    own |= {"kind": "Policy", "metadata": {"name": "p", "namespace": "apps"}}
    mounts = policy(
        "m", {"mutate": {"patchStrategicMerge": {"spec": {"volumes": [volume]}}}}
    )
    done = command("facts", scene.policies("p", own, mounts))
    documents = [one.raw for one in load(done.out)]
    found = [raw for raw in documents if raw["kind"] == "ConfigMap"]
    assert [raw["metadata"]["name"] for raw in found] == ["own"]


@pytest.mark.parametrize("text", ["", "a: [", "- 1\n", "a: 1\n", HEAD])
def test_file_without_facts(scene: Scene, text: str) -> None:
    scene.record((VALIDATE, review()))
    file = scene.policies("p", needs_label("p", "app"))
    facts = scene.folder / "facts.yaml"
    facts.write_text(text)
    done = scene.replay(file, "--facts", facts)
    assert done.code == 1
    assert "facts.yaml" in done.err
    assert scene.replay(file, "--facts", scene.folder / "none.yaml").code == 1
