"""Recorded reviews of policies in CEL against other policies of these kinds.

Expected values: the answers of the server's own service for the same policies. A
failure means: a team applies policies that deny what a replay had called unchanged, or
a Secret's value is in a recording.
"""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.replay.cel import CelReplay, cel_policies_of
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.recording.files import RecordingFiles
from kyverno_mp.webhook.recording.recorder import ReviewRecorder
from kyverno_mp.webhook.recording.redact import Redaction
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.unit.cli.conftest import Command
from tests.unit.cli.replay.test_replay import MIB, Scene, policy, review
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import still_ns

PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
SECRETS = {**PODS, "resources": ["secrets"]}


def validating(
    name: str, expression: str, /, namespace: str = "", **constraints: Any
) -> dict[str, Any]:
    """Return a ValidatingPolicy, or one of a namespace."""
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedValidatingPolicy" if namespace else "ValidatingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": [PODS], **constraints},
            "validations": [{"expression": expression, "message": "no"}],
        },
    }


def labelled(name: str, label: str, namespace: str = "") -> dict[str, Any]:
    expression = f"has(object.metadata.labels) && '{label}' in object.metadata.labels"
    return validating(name, expression, namespace)


def mutating(name: str, value: str) -> dict[str, Any]:
    """Return a MutatingPolicy that sets a label."""
    text = f'Object{{metadata: Object.metadata{{labels: {{"team": "{value}"}}}}}}'
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "MutatingPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [PODS]},
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": text},
                }
            ],
        },
    }


@pytest.fixture(name="scene")
def fixture_scene(tmp_path: Path, command: Command) -> Scene:
    return Scene(tmp_path, command)


def served(
    scene: Scene, file: Path, *requests: tuple[str, dict[str, Any]]
) -> list[bool]:
    """Answer by these policies as the server does, recording; return the verdicts."""
    found = load_policies([str(file)])
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    engine = Engine(ClusterData(), clock)
    policies = cel_policies_of(found, compile_all((), ()))
    cel = CelReplay(policies)
    # A path is for the policies that it names.
    cel.called = frozenset(("", one.policy.name) for one in policies.all)
    recorder = ReviewRecorder(RecordingFiles(scene.recording, 64 * MIB, 1), Redaction())
    recorder.start()
    service = Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=still_ns,
            recording=recorder,
        ),
        handlers_of(
            StubEvaluate(None),
            cel=cel.planners(engine),
        ),
    )
    answers = []
    for path, raw in requests:
        route = route_of(path.encode())
        assert route is not None
        answer = service.answer(route, b"", json.dumps({"request": raw}).encode())
        assert isinstance(answer, bytes)
        answers.append(bool(json.loads(answer)["response"]["allowed"]))
    recorder.stop(10)
    return answers


@pytest.mark.parametrize("is_against", [False, True])
@pytest.mark.parametrize(
    ("namespace", "path"),
    [("", "/vpol/p"), ("apps", "/nvpol/p"), ("apps", "/nvpol-keys/apps/p")],
)
def test_changed_policies(
    scene: Scene, namespace: str, path: str, *, is_against: bool
) -> None:
    before = scene.policies("a", labelled("p", "app", namespace))
    after = scene.policies("b", labelled("p", "owner", namespace))
    assert served(
        scene,
        before,
        (path, review("now-denied", labels={"app": "x"})),
        (path, review("now-allowed", labels={"owner": "x"})),
        (path, review("still-denied")),
        (path, review("still-allowed", labels={"app": "x", "owner": "y"})),
    ) == [True, False, False, True]
    flags = ("--against", before) if is_against else ()
    assert scene.changes(before, *flags) == {"unchanged": 4}
    found = scene.found(after, *flags)
    assert {one["change"]: one["name"] for one in found["list"]} == {
        "denied": "now-denied",
        "allowed": "now-allowed",
    }
    assert found["changes"]["unchanged"] == 2


def test_new_policy_applies_to_recorded_requests(scene: Scene) -> None:
    """Without --against: policies of the path, and those of no recorded path."""
    before = scene.policies("a", labelled("p", "app"), labelled("q", "x"))
    served(
        scene,
        before,
        ("/vpol/p", review("one", labels={"app": "x"})),
        ("/vpol/q", review("two", labels={"x": "x", "app": "x"})),
    )
    assert scene.changes(before) == {"unchanged": 2}
    after = scene.policies(
        "b", labelled("p", "app"), labelled("q", "x"), labelled("new", "owner")
    )
    assert scene.changes(after) == {"denied": 2}


def test_policy_of_another_namespace_decides_nothing(scene: Scene) -> None:
    before = scene.policies("a", labelled("p", "app", "apps"))
    served(scene, before, ("/nvpol-keys/apps/p", review(labels={"app": "x"})))
    after = scene.policies(
        "b", labelled("p", "app", "apps"), labelled("q", "owner", "others")
    )
    assert scene.changes(after) == {"unchanged": 1}


@pytest.mark.parametrize("is_against", [False, True])
def test_changed_mutations(scene: Scene, *, is_against: bool) -> None:
    before, after = (scene.policies(one, mutating("m", one)) for one in ("a", "b"))
    served(scene, before, ("/mpol/m", review("web")))
    flags = ("--against", before) if is_against else ()
    assert scene.changes(before, *flags) == {"unchanged": 1}
    found = scene.found(after, *flags)
    (one,) = found["list"]
    assert (one["change"], one["policies"]) == ("mutated", ["m"])
    assert any('"b"' in reason for reason in one["reasons"])


NEEDS = {
    "resource": 'resource.Get("v1", "configmaps", "ops", "teams").data.a == "b"',
    "globalContext": 'globalContext.Get("g", "") == "b"',
    "http": 'http.Get("https://x.example") == "b"',
    "image": 'image.GetMetadata("ghcr.io/a/b:1").registry == "b"',
    "swallowed": 'true || resource.Get("v1", "configmaps", "a", "b").data.a == "b"',
    "Namespace apps": 'namespaceObject.metadata.name == "x"',
}


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("actions", [["Deny"], ["Audit"]])
def test_policies_that_need_the_cluster_are_named_and_undecided(
    scene: Scene, need: str, actions: list[str]
) -> None:
    one = validating("needs", NEEDS[need])
    one["spec"]["validationActions"] = actions
    file = scene.policies("p", one, labelled("q", "app"))
    scene.record(
        ("/vpol/needs/q", review("open", labels={"app": "x"})),
        ("/vpol/needs/q", review("shut")),
    )
    found = scene.found(file)
    if need == "swallowed":
        # Nothing was read, so nothing lacks.
        assert scene.changes(file) == {"denied": 1, "unchanged": 1}
        return
    assert scene.changes(file) == {"denied": 1, "undecidable": 1}
    (named,) = found["undecidable"]
    assert named.startswith("policy needs: ")
    assert need in named


@pytest.mark.parametrize("label", ["dev", "prod"])
def test_namespace_selector_uses_the_recorded_labels(scene: Scene, label: str) -> None:
    selector = {"matchLabels": {"stage": "prod"}}
    one = validating("p", "false", namespaceSelector=selector)
    scene.record(("/vpol/p", review()), labels={"stage": label}, namespace_known=True)
    changes = scene.changes(scene.policies("p", one))
    assert changes == ({"denied": 1} if label == "prod" else {"unchanged": 1})


def test_secret_values_are_neither_stored_nor_evaluated(scene: Scene) -> None:
    value = "cGFzc3dvcmQtMTIz"
    one = validating("p", "object.data.a == 'x'", resourceRules=[SECRETS])
    one["spec"]["matchConditions"] = [
        {"name": "c", "expression": f"object.data.a == '{value}'"}
    ]
    file = scene.policies("p", one, labelled("pods", "app"))
    raw = review(object={"kind": "Secret", "data": {"a": value}})
    assert served(scene, file, ("/vpol/p", raw)) == [False]
    for stored in scene.recording.iterdir():
        assert value.encode() not in gzip.decompress(stored.read_bytes())
    found = scene.found(file)
    assert scene.changes(file) == {"undecidable": 1}
    assert list(found["undecidable"]) == ["policy p: redacted: /object/data"]


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("namespace", ["", "apps"])
@pytest.mark.parametrize("action", ["Deny", "Audit", "Warn"])
def test_denying_policies_are_recorded(
    scene: Scene, failure_policy: str, namespace: str, action: str
) -> None:
    """An error denies by the policy's action, not by its failurePolicy."""
    fails = validating("fails", "object.metadata.none.x == 'a'", namespace)
    fails["spec"] |= {"failurePolicy": failure_policy, "validationActions": [action]}
    file = scene.policies("a", fails, labelled("q", "app", namespace))
    path = "/nvpol/fails/q" if namespace else "/vpol/fails/q"
    allowed = served(scene, file, (path, review("one", labels={"app": "x"})))
    assert allowed == [action != "Deny"]
    assert served(scene, file, (path, review("two"))) == [False]
    recorded = {
        line["request"]["name"]: line["answer"].get("policies", [])
        for stored in scene.recording.iterdir()
        for line in map(json.loads, gzip.decompress(stored.read_bytes()).splitlines())
        if "request" in line
    }
    prefix = f"{namespace}/" if namespace else ""
    denying = [f"{prefix}fails"] if action == "Deny" else []
    assert recorded == {"one": denying, "two": [*denying, f"{prefix}q"]}


@pytest.mark.parametrize("is_classic", [False, True])
def test_mutation_with_ignored_failure_denies_nothing(
    scene: Scene, *, is_classic: bool
) -> None:
    policies = []
    for name, failure_policy in (("a", "Ignore"), ("b", "Fail")):
        if is_classic:
            labels = {"metadata": {"labels": {"x": "{{ request.object.none }}"}}}
            body = {"mutate": {"patchStrategicMerge": labels}}
            one = policy(name, body, failurePolicy=failure_policy)
        else:
            one = mutating(name, "x")
            (mutation,) = one["spec"]["mutations"]
            text = "Object{metadata: Object.metadata{name: string(object.none)}}"
            mutation["applyConfiguration"]["expression"] = text
            one["spec"]["failurePolicy"] = failure_policy
        policies.append(one)
    scene.record(("/mutate" if is_classic else "/mpol/a/b", review()))
    (change,) = scene.found(scene.policies("m", *policies))["list"]
    assert (change["change"], change["policies"]) == ("denied", ["b"])


@pytest.mark.parametrize("is_classic", [False, True])
def test_mutation_cannot_copy_a_secret_into_the_recording(
    scene: Scene, *, is_classic: bool
) -> None:
    value = "cGFzc3dvcmQtMTIz"
    raw = review(object={"kind": "Secret", "data": {"a": value}})
    if is_classic:
        labels = {"metadata": {"labels": {"x": "{{ request.object.data.a }}"}}}
        body = {"mutate": {"patchStrategicMerge": labels}}
        file = scene.policies("m", policy("m", body, ["Secret"]))
        scene.serve(file, ("/mutate/fail", raw))
    else:
        one = mutating("m", "x")
        one["spec"]["matchConstraints"]["resourceRules"] = [SECRETS]
        patch = "[JSONPatch{op: 'add', path: '/metadata/labels/x', value: %s}]"
        one["spec"]["mutations"] = [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": patch % "object.data.a"},
            }
        ]
        file = scene.policies("m", one)
        served(scene, file, ("/mpol/m", raw))
    (stored,) = scene.recording.iterdir()
    text = gzip.decompress(stored.read_bytes())
    assert b"/metadata/labels" in text
    assert value.encode() not in text
    assert scene.changes(file) == {"undecidable": 1}


@pytest.mark.parametrize("path", ["/gpol/p", "/ngpol/p", "/ivpol/validate/p"])
def test_generating_and_image_policies_are_not_recorded(
    scene: Scene, path: str
) -> None:
    file = scene.policies("p", labelled("p", "app"))
    served(scene, file, (path, review()), ("/vpol/p", review()))
    assert scene.found(file)["requests"] == 1


def test_cel_policy_and_another_with_its_name_are_compared(scene: Scene) -> None:
    """The other policy of the same name is equal on both sides, this one is not."""
    context = 'resource.Get("v1", "configmaps", "a", "b").data.a == "{}"'
    same = mutating("p", "x")
    before = scene.policies("a", same, validating("p", context.format("x")))
    after = scene.policies("b", same, validating("p", context.format("y")))
    scene.record(("/vpol/p", review()))
    assert scene.changes(before, "--against", before) == {"unchanged": 1}
    assert scene.changes(after, "--against", before) == {"undecidable": 1}
