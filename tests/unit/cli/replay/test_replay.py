"""Replays of recorded requests show each changed verdict and no false "unchanged".

A failure means: a team applies policies that deny what a replay had called unchanged.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.admission.decode import decode
from kyverno_mp.cli.replay.changes import Change, Tables
from kyverno_mp.cli.replay.recording import recording_of
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.limits import (
    RECORDING_LINE_BYTES_MAX,
    REPLAY_EQUAL_REQUESTS_MAX,
    REPLAY_LISTED_MAX,
)
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.list_source import ListSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.recording.files import RecordingFiles
from kyverno_mp.webhook.recording.recorder import ReviewRecorder
from kyverno_mp.webhook.recording.redact import LAST_APPLIED, Redaction
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.unit.cli.conftest import Command, Done
from tests.unit.webhook.stub import StubRecords
from tests.waiting import still_ns

MIB = 1024 * 1024
VALIDATE, MUTATE = "/validate/fail", "/mutate/fail"


def policy(
    name: str, body: dict[str, Any], kinds: Sequence[str] = ("Pod",), /, **spec: Any
) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": list(kinds)}}]}
    rule = {"name": "r", "match": match, **body}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": name,
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {"rules": [rule], **spec},
    }


def needs_label(name: str, label: str, **rule: Any) -> dict[str, Any]:
    pattern = {"metadata": {"labels": {label: "?*"}}}
    body = {"failureAction": "Enforce", "message": f"no {label}", "pattern": pattern}
    return policy(name, {"validate": body, **rule})


def adds_label(name: str, value: str) -> dict[str, Any]:
    labels = {"metadata": {"labels": {"+(team)": value}}}
    return policy(name, {"mutate": {"patchStrategicMerge": labels}})


def denies(key: str, value: str, **rule: Any) -> dict[str, Any]:
    condition = {"key": key, "operator": "Equals", "value": value}
    body = {"failureAction": "Enforce", "message": "no"}
    deny = {"deny": {"conditions": {"any": [condition]}}}
    return {"validate": {**body, **deny}, **rule}


def review(name: str = "web", **more: Any) -> dict[str, Any]:
    """Return an AdmissionRequest for a Pod, or for the object in ``more``."""
    resource = more.pop("object", {"kind": "Pod", "spec": {}})
    labels = more.pop("labels", {})
    metadata = {"name": name, "labels": labels, **resource.get("metadata", {})}
    kind = resource["kind"]
    return {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": f"{kind.lower()}s"},
        "operation": "CREATE",
        "name": name,
        "namespace": "apps",
        "userInfo": {"username": "ann"},
        "object": {**resource, "metadata": metadata},
        **more,
    }


class Scene:
    """A folder of policies before and after, and a recording."""

    def __init__(self, folder: Path, command: Command) -> None:
        self.folder = folder
        self.recording = folder / "recording"
        self._command = command

    def policies(self, name: str, *documents: dict[str, Any]) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        return file

    def record(
        self,
        *requests: tuple[str, dict[str, Any]],
        allowed: bool = True,
        failed: bool = False,
        patch: Any = (),
        labels: dict[str, str] | None = None,
        redact: str = "",
        now_ms: int = 1_800_000_000_000,
        **extra: Any,
    ) -> None:
        """Record requests with equal answers."""
        files = RecordingFiles(self.recording, 64 * MIB, 1)
        recorder = ReviewRecorder(files, Redaction(redact), time_ms=lambda: now_ms)
        recorder.start()
        for path, raw in requests:
            request = decode(json.dumps({"request": raw}).encode())
            request.namespace_labels = labels or {}
            for name, value in extra.items():
                setattr(request, name, value)
            recorder.record(request, path, [], patch, allowed=allowed, failed=failed)
        recorder.stop(10)

    def serve(self, file: Path, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
        """Answer with these policies as the server does, record, return the answers."""
        compiled = compile_all(load_policies([str(file)]).documents, ()).policies
        engine = Engine(
            ClusterData(),
            Clock(now=lambda: None, monotonic_ns=still_ns),  # type: ignore[arg-type, return-value]
        )
        validating = ValidationPlanner(engine, ListSource(compiled, link_rule))
        mutating = MutationPlanner(engine, ListSource(compiled, link_mutation))
        recorder = ReviewRecorder(
            RecordingFiles(self.recording, 64 * MIB, 1), Redaction()
        )
        recorder.start()
        service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=still_ns,
                recording=recorder,
            ),
            handlers_of(
                SnapshotEvaluate(lambda: validating), SnapshotMutate(lambda: mutating)
            ),
        )
        answers = []
        for path, raw in requests:
            body = json.dumps({"request": raw}).encode()
            answer = service.answer(SHARED[path.encode()], b"", body)
            assert isinstance(answer, bytes)
            answers.append(json.loads(answer)["response"])
        recorder.stop(10)
        return answers

    def replay(self, *arguments: object) -> Done:
        return self._command("replay", self.recording, *arguments)

    def found(self, *arguments: object) -> Any:
        done = self.replay(*arguments, "-o", "json")
        assert done.out, done.err
        return json.loads(done.out)

    def changes(self, *arguments: object) -> dict[str, int]:
        """Return the changes that occur."""
        counted = self.found(*arguments)["changes"]
        return {name: number for name, number in counted.items() if number}


@pytest.fixture
def scene(tmp_path: Path, command: Command) -> Scene:
    return Scene(tmp_path, command)


def test_same_policies_change_nothing(scene: Scene) -> None:
    file = scene.policies("p", needs_label("p", "app"), adds_label("m", "a"))
    answers = scene.serve(
        file,
        *((path, review("bad")) for path in (VALIDATE, MUTATE)),
        *((path, review("good", labels={"app": "x"})) for path in (VALIDATE, MUTATE)),
    )
    assert [one["allowed"] for one in answers] == [False, True, True, True]
    assert [one.get("patch") is not None for one in answers] == [False, True] * 2
    for against in ((), ("--against", file)):
        assert scene.changes(file, *against) == {"unchanged": 4}
        assert scene.replay(file, *against).code == 0


BEFORE = [needs_label("p-old", "app"), adds_label("m", "a")]
AFTER = [needs_label("p-new", "owner"), adds_label("m", "b")]


@pytest.mark.parametrize("is_against", [False, True])
def test_changed_policies(scene: Scene, *, is_against: bool) -> None:
    before, after = scene.policies("a", *BEFORE), scene.policies("b", *AFTER)
    user = {"userInfo": {"username": "bob"}, "namespace": "other"}
    scene.serve(
        before,
        (VALIDATE, review("now-denied", labels={"app": "x"})),
        (VALIDATE, review("now-allowed", labels={"owner": "x"}, **user)),
        (VALIDATE, review("still-denied")),
        (VALIDATE, review("still-allowed", labels={"app": "x", "owner": "y"})),
        (MUTATE, review("mutated")),
        (MUTATE, review("as-before", labels={"team": "own"})),
    )
    flags = ("--against", before) if is_against else ()
    found = scene.found(after, *flags)
    assert found["requests"] == 6
    assert {one["change"]: one["name"] for one in found["list"]} == {
        "denied": "now-denied",
        "allowed": "now-allowed",
        "mutated": "mutated",
    }
    assert found["changes"]["unchanged"] == 3
    by = found["by"]
    assert (
        by["policy"]
        == {
            "p-new": {"denied": 1},
            "p-old": {"allowed": 1},
            "m": {"mutated": 1},
        }
        or not is_against
    )
    assert by["namespace"] == {
        "apps": {"denied": 1, "mutated": 1},
        "other": {"allowed": 1},
    }
    assert by["user"] == {"ann": {"denied": 1, "mutated": 1}, "bob": {"allowed": 1}}
    reasons = {
        one["change"]: one["reasons"] for one in found["list"] if "reasons" in one
    }
    assert reasons["denied"][0].startswith("p-new/r: validation error: no owner.")
    assert reasons["mutated"][-1] == 'now: add /metadata/labels/team = "b"'


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [
        ([], 1),
        (["--fail-on", "denied"], 1),
        (["--fail-on", "allowed,mutated"], 0),
        (["--fail-on", "none"], 0),
        (["--fail-on", "undecidable", "--fail-on", "denied"], 1),
    ],
)
@pytest.mark.parametrize("output", ["table", "json", "markdown"])
def test_exit_code(scene: Scene, output: str, fail_on: list[str], code: int) -> None:
    scene.record((VALIDATE, review("<script>")))
    done = scene.replay(
        scene.policies("p", needs_label("p", "app")), "-o", output, *fail_on
    )
    assert (done.code, done.err) == (code, "")
    assert "script" in done.out
    assert "<script>" not in done.out or output != "markdown"


def _context(**entry: Any) -> dict[str, Any]:
    return {"context": [{"name": "found", **entry}]}


SWALLOWED = {
    "context": [
        {"name": "map", "configMap": {"name": "teams", "namespace": "ops"}},
        {"name": "found", "variable": {"jmesPath": "map.data.a", "default": "b"}},
    ]
}
LACKING = {
    "ConfigMap ops/teams": _context(configMap={"name": "teams", "namespace": "ops"}),
    "GET /api/v1/nodes": _context(apiCall={"urlPath": "/api/v1/nodes"}),
    "GlobalContextEntry g": _context(globalReference={"name": "g"}),
    "image ghcr.io/a/b:1": _context(imageRegistry={"reference": "ghcr.io/a/b:1"}),
    "random()": _context(variable={"value": "{{ random('[a-z]{8}') }}"}),
}


@pytest.mark.parametrize("need", [*LACKING, "swallowed"])
@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_policy_that_needs_the_cluster_is_named_and_never_allows(
    scene: Scene, need: str, failure_policy: str
) -> None:
    context = LACKING.get(need, SWALLOWED)
    key = "{{ found.data.a }}" if need.startswith("ConfigMap") else "{{ found }}"
    body = denies(key, "never", **context)
    one = policy("p-needs", body)
    one["spec"]["webhookConfiguration"] = {"failurePolicy": failure_policy}
    file = scene.policies("p", one, needs_label("q", "app"))
    scene.record(
        (VALIDATE, review("open", labels={"app": "x"})), (VALIDATE, review("shut"))
    )
    found = scene.found(file)
    # A policy without needs denies the second request: one denial is enough.
    assert found["changes"] == {
        "denied": 1,
        "undecidable": 1,
        "mutated": 0,
        "allowed": 0,
        "unchanged": 0,
    }
    (named,) = found["undecidable"]
    assert named.startswith("policy p-needs: ")
    assert need in named or need == "swallowed"
    assert found["by"]["policy"]["p-needs"] == {"undecidable": 1}
    assert scene.replay(file).code == 1


def test_mutation_that_needs_the_cluster(scene: Scene) -> None:
    labels = {"metadata": {"labels": {"x": "{{ found.data.a || 'none' }}"}}}
    body = {"mutate": {"patchStrategicMerge": labels}, **LACKING["ConfigMap ops/teams"]}
    file = scene.policies("p", policy("m-needs", body))
    scene.record((MUTATE, review()))
    found = scene.found(file)
    assert found["changes"]["undecidable"] == 1
    assert found["undecidable"] == {"policy m-needs: ConfigMap ops/teams": 1}


def test_unchanged_policy_that_needs_the_cluster_hides_no_other_change(
    scene: Scene,
) -> None:
    context = LACKING["ConfigMap ops/teams"]
    needs = policy("p-needs", denies("{{ found.data.a }}", "x", **context))
    before = scene.policies("a", needs)
    after = scene.policies("b", needs, needs_label("q", "app"))
    other = policy("p-needs", denies("{{ found.data.a }}", "z", **context))
    changed = scene.policies("c", other)
    scene.record(
        (VALIDATE, review("open", labels={"app": "x"})), (VALIDATE, review("shut"))
    )
    assert scene.changes(before, "--against", before) == {"unchanged": 2}
    # The policy "shut" may also have denied the request before.
    assert scene.changes(after, "--against", before) == {
        "undecidable": 1,
        "unchanged": 1,
    }
    assert scene.changes(changed, "--against", before) == {"undecidable": 2}


SECRET = {"kind": "Secret", "data": {"a": "YQ=="}, "type": "Opaque"}
READS = {
    "data": denies("{{ request.object.data.a }}", "never"),
    "whole object": denies("{{ to_string(request.object) }}", "never"),
    "old object": denies("{{ request.oldObject.data.a || '' }}", "never"),
    "pattern": {
        "validate": {"failureAction": "Enforce", "pattern": {"data": {"a": "?*"}}}
    },
    "mutation": {"mutate": {"patchStrategicMerge": {"data": {"+(b)": "eA=="}}}},
}
READS_NOT = {
    "type": denies("{{ request.object.type }}", "never"),
    "labels": {
        "validate": {
            "failureAction": "Enforce",
            "pattern": {"metadata": {"labels": {"app": "?*"}}},
        }
    },
}


@pytest.mark.parametrize("name", [*READS, *READS_NOT])
def test_policy_that_may_read_a_redacted_value(scene: Scene, name: str) -> None:
    body = {**READS, **READS_NOT}[name]
    file = scene.policies("p", policy("p-reads", body, ["Secret"]))
    raw = review("s", object=SECRET, labels={"app": "x"})
    scene.record((MUTATE if name == "mutation" else VALIDATE, raw))
    found = scene.found(file)
    expected = "unchanged" if name in READS_NOT else "undecidable"
    assert found["changes"][expected] == 1
    if name in READS:
        assert found["undecidable"] == {"policy p-reads: redacted: /object/data": 1}


def test_match_block_that_reads_a_redacted_annotation(scene: Scene) -> None:
    raw = review(
        "s", object={**SECRET, "metadata": {"annotations": {LAST_APPLIED: "x"}}}
    )
    one = policy("p", denies("a", "b"), ["Secret"])
    resources = one["spec"]["rules"][0]["match"]["any"][0]["resources"]
    scene.record((VALIDATE, raw))
    for pattern, expected in (("*applied*", "undecidable"), ("team", "unchanged")):
        resources["annotations"] = {pattern: "some"}
        assert scene.changes(scene.policies("p", one)) == {expected: 1}


def test_configured_redaction(scene: Scene) -> None:
    containers = [{"name": "c", "image": "a:1", "env": [{"name": "A", "value": "b"}]}]
    raw = review(object={"kind": "Pod", "spec": {"containers": containers}})
    scene.record((VALIDATE, raw), redact="Pod:spec.containers[].env[].value")
    for field, expected in (
        (("image", "!*:2"), "unchanged"),
        (("env", [{"value": "?*"}]), "undecidable"),
    ):
        pattern = {"spec": {"containers": [dict([field])]}}
        body = {"validate": {"failureAction": "Enforce", "pattern": pattern}}
        assert scene.changes(scene.policies("p", policy("p", body))) == {expected: 1}


def _matching(**criteria: Any) -> dict[str, Any]:
    found = needs_label("p", "app")
    (entry,) = found["spec"]["rules"][0]["match"]["any"]
    resources = {"kinds": ["Pod"], **criteria.pop("resources", {})}
    entry.update({"resources": resources, **criteria})
    return found


RECORDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "labels of the namespace": (
        {"resources": {"namespaceSelector": {"matchLabels": {"env": "prod"}}}},
        {"labels": {"env": "prod"}},
    ),
    "roles": ({"roles": ["apps:editor"]}, {"roles": ("apps:editor",)}),
    "cluster roles": ({"clusterRoles": ["admin"]}, {"cluster_roles": ("admin",)}),
    "user": ({"subjects": [{"kind": "User", "name": "ann"}]}, {}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_fields_added_by_the_server_are_recorded(scene: Scene, name: str) -> None:
    criteria, extra = RECORDED[name]
    scene.record((VALIDATE, review()), **extra)
    found = _matching(**criteria)
    found["spec"]["background"] = False
    assert scene.changes(scene.policies("p", found)) == {"denied": 1}


def test_rules_use_the_time_of_the_review(scene: Scene) -> None:
    late = "{{ time_after(time_now_utc(), '2030-01-01T00:00:00Z') }}"
    condition = {"key": late, "operator": "Equals", "value": True}
    body = {"failureAction": "Enforce", "deny": {"conditions": {"any": [condition]}}}
    file = scene.policies("p", policy("p", {"validate": body}))
    scene.record((VALIDATE, review("a")), now_ms=1_890_000_000_000)  # 2029
    scene.record((VALIDATE, review("b")), now_ms=1_900_000_000_000)  # 2030
    found = scene.found(file)
    assert [one["name"] for one in found["list"]] == ["b"]


def test_paths_of_one_request_count_once(scene: Scene) -> None:
    raw = review()
    other = {**raw, "uid": "u-2"}
    scene.record((VALIDATE, raw), allowed=False)
    scene.record(("/validate/ignore", other))
    file = scene.policies("p", needs_label("p", "app"))
    found = scene.found(file)
    assert (found["requests"], found["changes"]["unchanged"]) == (1, 1)
    # A further review of one path counts as another request.
    scene.record((VALIDATE, {**raw, "uid": "u-3"}), allowed=False)
    assert scene.found(file)["requests"] == 2


def test_many_identical_requests(scene: Scene) -> None:
    raw = review()
    count = REPLAY_EQUAL_REQUESTS_MAX + 6
    scene.record(*((VALIDATE, raw) for _ in range(count)))
    scene.record(*(("/validate/ignore", raw) for _ in range(count)))
    file = scene.policies("p", needs_label("p", "app"))
    # The reviews beyond the limit find no partner: they count twice, but none is lost.
    assert scene.found(file)["requests"] == count + 6


def test_answers_are_compared_with_the_policies_of_their_path(scene: Scene) -> None:
    """If only one of two paths is sampled, the other path's policies change nothing."""
    ignoring = needs_label("p-ignore", "app")
    ignoring["spec"]["webhookConfiguration"] = {"failurePolicy": "Ignore"}
    scene.record((VALIDATE, review("a")))
    scene.record(("/validate/ignore", review("b")), allowed=False)
    file = scene.policies("p", ignoring)
    assert scene.changes(file) == {"unchanged": 2}
    # A failurePolicy whose path was never called is new, so it counts for all paths.
    for one in scene.recording.iterdir():
        if b"ignore" in gzip.decompress(one.read_bytes()):
            one.unlink()
    assert scene.changes(file) == {"denied": 1}


def test_failure_policy_answer_is_no_verdict(scene: Scene) -> None:
    scene.record((VALIDATE, review(labels={"app": "x"})), allowed=False, failed=True)
    file = scene.policies("p", needs_label("p", "app"))
    assert scene.changes(file) == {"undecidable": 1}
    assert scene.changes(file, "--against", file) == {"unchanged": 1}


def test_policies_run_in_the_servers_order(scene: Scene) -> None:
    """Policies run in order of name; of two with one name, the later one counts."""
    scene.record((MUTATE, review()))
    file = scene.policies(
        "p", adds_label("m-2", "2"), adds_label("m-1", "0"), adds_label("m-1", "1")
    )
    (one,) = scene.found(file)["list"]
    assert one["reasons"] == ['now: add /metadata/labels/team = "1"']


def test_exceptions_apply(scene: Scene) -> None:
    exception = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": "apps"},
        "spec": {
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
        },
    }
    before = scene.policies("a", needs_label("p", "app"))
    after = scene.policies("b", needs_label("p", "app"), exception)
    scene.record((VALIDATE, review()), allowed=False)
    assert scene.changes(after, "--against", before) == {"allowed": 1}


def test_subresources_and_custom_kinds(scene: Scene) -> None:
    raw = review(object={"kind": "Scale", "spec": {"replicas": 9}})
    raw["resource"] = {"group": "acme.io", "version": "v1", "resource": "widgets"}
    raw["kind"] = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    body = json.dumps({"request": {**raw, "subResource": "scale"}}).encode()
    files = RecordingFiles(scene.recording, MIB, 1)
    recorder = ReviewRecorder(files, Redaction())
    recorder.start()
    request = decode(body, lambda *_: "Widget")
    recorder.record(request, VALIDATE, [], (), allowed=True, failed=False)
    recorder.stop(5)
    pattern = {"spec": {"replicas": "<5"}}
    rule = {"validate": {"failureAction": "Enforce", "pattern": pattern}}
    file = scene.policies("p", policy("p", rule, ["acme.io/v1/Widget/scale"]))
    assert scene.changes(file) == {"denied": 1}


def test_segment_still_being_written(scene: Scene) -> None:
    scene.record((VALIDATE, review("a")), (VALIDATE, review("b")))
    (file,) = scene.recording.iterdir()
    whole = file.read_bytes()
    file.unlink()
    part = scene.recording / f"{file.name}.part"
    part.write_bytes(whole[:-12])
    file = scene.policies("p", needs_label("p", "app"))
    done = scene.replay(file, "-o", "json")
    assert json.loads(done.out)["requests"] == 2
    assert "is not complete yet; its complete lines are used" in done.err


def test_reviews_recorded_during_a_replay_are_left_out(scene: Scene) -> None:
    """A worker adds to the first of two files between the passes."""
    line = {"timeMs": 1, "path": VALIDATE, "kind": ["", "v1", "Pod"]}
    rest = {**line, "request": {}, "answer": {"allowed": True}}
    text = json.dumps(rest).encode() + b"\n"
    scene.recording.mkdir()
    for name in ("reviews-1.jsonl", "reviews-2.jsonl"):
        (scene.recording / name).write_bytes(_header() + text)
    recording = recording_of(str(scene.recording))
    assert len(list(recording.lines())) == 2
    with (scene.recording / "reviews-1.jsonl").open("ab") as file:
        file.write(text)
    assert len(list(recording.lines())) == 2


def _header(version: int = 1) -> bytes:
    return b'{"kyvernoMpRecording":%d}\n' % version


BAD: dict[str, tuple[bytes, str]] = {
    "text.jsonl": (b"hello\n", "is not a recording of reviews"),
    "empty.jsonl": (b"", "is not a recording of reviews"),
    "array.jsonl": (b"[]\n", "is not a recording of reviews"),
    "version.jsonl": (_header(2), "has version 2, and only 1 is known"),
    "line.jsonl": (_header() + b"{}\n{}\n", "has a line that is not a review"),
    "text.jsonl.gz": (b"hello\n", "is damaged"),
    "flipped.jsonl.gz": (
        gzip.compress(_header())[:-8] + b"\xff" * 8,
        "is damaged",
    ),
    "long.jsonl": (
        _header() + b"x" * (RECORDING_LINE_BYTES_MAX + 1) + b"\n",
        "has a line that is too long",
    ),
    "path.jsonl": (
        _header()
        + b'{"timeMs":1,"path":"/x","kind":["","v1","Pod"],"request":{},'
        + b'"answer":{"allowed":true}}\n',
        "has the unknown path '/x'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_recordings(scene: Scene, name: str) -> None:
    data, said = BAD[name]
    scene.recording = scene.folder / name
    scene.recording.write_bytes(data)
    done = scene.replay(scene.policies("p", needs_label("p", "app")))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "[cli.recording]" in done.err


def test_review_that_the_server_rejects_is_not_decidable(scene: Scene) -> None:
    scene.recording = scene.folder / "odd.jsonl"
    line = {"timeMs": 1, "path": VALIDATE, "kind": ["", "v1", "Pod"]}
    lines = [
        {**line, "request": {"operation": "EAT"}, "answer": {"allowed": True}},
        {**line, "request": {}, "answer": {"allowed": True}},
    ]
    text = b"\n".join(json.dumps(one).encode() for one in lines)
    scene.recording.write_bytes(_header() + text + b"\n")
    file = scene.policies("p", needs_label("p", "app"))
    assert scene.changes(file) == {"undecidable": 2}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{gone}", "{policies}"], "no such file"),
        (["{empty}", "{policies}"], "no recording in"),
        (["{recording}", "{gone}"], "no such file"),
        (["{recording}", "{empty}"], "no policies in"),
        (["{recording}", "{broken}"], "broken.yaml"),
        (["{recording}", "{policies}", "--against", "{gone}"], "no such file"),
        (["{recording}", "{policies}", "--fail-on", "deny"], "'deny' is not one of"),
        (["{recording}"], "Missing argument 'POLICY...'"),
    ],
)
def test_invalid_input(
    scene: Scene, command: Command, words: list[str], said: str
) -> None:
    scene.record((VALIDATE, review()))
    places = {
        "gone": scene.folder / "gone",
        "empty": scene.folder / "empty",
        "recording": scene.recording,
        "policies": scene.policies("p", needs_label("p", "app")),
        "broken": scene.policies("broken", {"apiVersion": "kyverno.io/v1"}),
    }
    places["empty"].mkdir()
    done = command("replay", *(one.format(**places) for one in words))
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_policies_that_the_server_does_not_run_are_named(scene: Scene) -> None:
    images = [{"imageReferences": ["*"], "mutateDigest": False}]
    verify = policy("v", {"verifyImages": images})
    scene.record((VALIDATE, review()))
    done = scene.replay(scene.policies("p", verify, needs_label("p", "app")))
    assert "policy v: not in force: " in done.err
    assert done.code == 1


def test_list_is_truncated() -> None:
    tables = Tables()
    one = Change(
        change="denied",
        time_ms=0,
        webhook="validate",
        operation="CREATE",
        kind="Pod",
        namespace="",
        name="",
        user="",
        policies=(),
    )
    for _ in range(REPLAY_LISTED_MAX + 5):
        tables.add(one)
    assert len(tables.listed) == REPLAY_LISTED_MAX
    assert tables.changes["denied"] == REPLAY_LISTED_MAX + 5
