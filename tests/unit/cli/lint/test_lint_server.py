"""``lint`` and ``explain`` predict the policies that the server rejects.

A failure means: a pipeline accepts a policy that is not in force in the cluster.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.lint.corrected.report import CORRECTED
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.policy.reading.load import load
from kyverno_mp.webhook.policy_review import PolicyReview, ReviewOptions
from tests.unit.cli.conftest import LATEST_POLICY, Command

HEAD = """apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
"""
VALIDATE = """
  - name: v
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {message: m, pattern: {metadata: {name: "?*"}}}"""
GENERATE = """
  - name: g
    match: {any: [{resources: {kinds: [Namespace]}}]}
    generate: {apiVersion: v1, kind: ConfigMap, name: c, namespace: d, data: {data: {}}}
"""
EXISTING = """
  - name: e
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate:
      targets: [{apiVersion: v1, kind: Secret, name: s, namespace: d}]
      patchStrategicMerge: {metadata: {labels: {a: b}}}"""
IMAGES = """
  - name: i
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["*"]
      mutateDigest: false
      additionalExtensions: {a: b}"""
KEY = """
      attestors: [{entries: [{keys: {secret: {name: k, namespace: kyverno}}}]}]"""
VERIFIED = IMAGES.replace("\n      additionalExtensions: {a: b}", KEY)
CLEANUP = """apiVersion: kyverno.io/v2
kind: ClusterCleanupPolicy
metadata: {name: p}
spec: {schedule: "* * * * *", match: {any: [{resources: {kinds: [Pod]}}]}}
"""
CONDITIONS = f"""{HEAD}  webhookConfiguration:
    matchConditions:
    - {{name: "not a name", expression: "true"}}
  rules:{VALIDATE}
"""
# Each row has a policy, the server's error codes, and the command line's error codes.
CASES = {
    "sound": (f"{HEAD}  rules:{VALIDATE}", set(), set()),
    "one rule": (f"{HEAD}  rules:{VALIDATE}{IMAGES}", {"leader.unsupported"}, set()),
    "verified": (f"{HEAD}  rules:{VERIFIED}", set(), set()),
    "no rule": (f"{HEAD}  rules:{IMAGES}", {"leader.unsupported"}, set()),
    "generate": (f"{HEAD}  rules:{VALIDATE}{GENERATE}", set(), set()),
    "existing": (f"{HEAD}  rules:{EXISTING}", set(), set()),
    "images": (f"{HEAD}  rules:{IMAGES}{VALIDATE}", {"leader.unsupported"}, set()),
    "apply one": (
        f"{HEAD}  applyRules: One\n  rules:{VALIDATE}{IMAGES}",
        {"leader.unsupported"},
        set(),
    ),
    "clean-up": (CLEANUP, set(), set()),
    "conditions": (CONDITIONS, {"webhook.policy_refused"}, set()),
    "name": (
        f"{HEAD}  rules:{VALIDATE}".replace("name: p", "name: P_"),
        {"leader.name"},
        {"leader.name"},
    ),
}


def _errors(command: Command, file: Path, *more: str) -> set[str]:
    done = command("lint", file, "-o", "json", *more)
    found = {one["code"] for one in json.loads(done.out) if one["level"] == "error"}
    assert done.code == (1 if found else 0)
    return found


def _stored(file: Path) -> dict[str, Any]:
    """Return the server's own verdict on the policies of a file."""
    changes = Changes({str(file): file.read_bytes()}, ())
    found = PolicyStore(lambda _: True, has_background=True).update(changes)
    return {one.code: one.message for one in found.policies if not one.ready}


def _admitted(file: Path) -> bool:
    """Return whether the server's policy webhook admits the document of a file."""
    raw = load(file.read_bytes())[0].raw
    group, _, version = raw["apiVersion"].partition("/")
    kind = {"group": group, "version": version, "kind": raw["kind"]}
    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": kind,
        "resource": {"group": group, "version": version, "resource": "x"},
        "userInfo": {},
        "object": raw,
    }
    path = (
        "/policyvalidate"
        if raw["kind"].endswith("rPolicy")
        else "/cleanuppolicyvalidate"
    )
    body = json.dumps({"request": request}).encode()
    answer = json.loads(PolicyReview(ReviewOptions(), lambda: 0.0).answer(path, body))
    return bool(answer["response"]["allowed"])


@pytest.mark.parametrize("name", CASES)
def test_lint(command: Command, tmp_path: Path, name: str) -> None:
    text, server, cli = CASES[name]
    file = tmp_path / "p.yaml"
    file.write_text(text)
    assert _errors(command, file) == server
    assert _errors(command, file, "--target", "server") == server
    assert _errors(command, file, "--target", "cli") == cli


# A folder has no objects to delete: only a cluster runs clean-up policies.
@pytest.mark.parametrize("name", [one for one in CASES if one != "clean-up"])
def test_server_and_lint_agree(tmp_path: Path, name: str) -> None:
    """Every policy that is not admitted or not in force has the server's error code."""
    text, server, _ = CASES[name]
    file = tmp_path / "p.yaml"
    file.write_text(text)
    assert set(_stored(file)) <= server
    is_refused = bool(_stored(file)) or not _admitted(file)
    assert is_refused == bool(server)


def test_other_rules_of_the_policy(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    for name, fate in (
        ("one rule", "the server skips this rule"),
        ("no rule", "the server rejects the policy"),
        ("apply one", "the server rejects the policy"),
    ):
        file.write_text(CASES[name][0])
        line = file.read_text().splitlines().index("  - name: i") + 1
        done = command("lint", file)
        assert f"{file}:{line}:5: error: not supported by this version: " in done.out
        assert fate in done.out
        done = command("explain", file)
        assert done.code == 1
        assert f"{fate} [leader.unsupported]" in done.err
        assert command("explain", file, "--target", "cli").code == 0


@pytest.mark.parametrize("name", CASES)
def test_explain_agrees_with_the_server(
    command: Command, tmp_path: Path, name: str
) -> None:
    """A failure means: who checks policies before an upgrade is misled."""
    text, server, _ = CASES[name]
    (tmp_path / "p.yaml").write_text(text)
    assert bool(command("explain", tmp_path / "p.yaml").code) == bool(server)


@pytest.mark.parametrize("name", ["generate", "existing"])
def test_server_without_a_background_pool_causes_a_warning(
    command: Command, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(CASES[name][0])
    found = json.loads(command("lint", file, "-o", "json").out)
    assert [(one["code"], one["level"]) for one in found] == [
        ("leader.no_background_pool", "note")
    ]
    assert "a server without a background pool skips this rule" in (found[0]["message"])
    assert not json.loads(command("lint", file, "-o", "json", "--target", "cli").out)


def test_explain_marks_the_rules(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(CASES["one rule"][0])
    (policy,) = json.loads(command("explain", file, "-o", "json").out)
    marks = {one["name"]: bool(one["notServed"]) for one in policy["rules"]}
    assert marks.items() >= {"v": False, "i": True}.items()


def test_warnings_are_not_repeated_for_the_server(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(CASES["images"][0])

    def found(*flags: str) -> list[Any]:
        told = json.loads(command("lint", file, "-o", "json", *flags).out)
        return [one for one in told if one["code"] not in CORRECTED]

    assert [one["code"] for one in found()] == ["leader.unsupported"]
    assert [(one["code"], one["level"]) for one in found("--target", "cli")] == [
        ("lint.unsupported", "warning")
    ]


FOREIGN = {
    "kustomization.yaml": "resources: [policy.yaml]\n",
    "overlay/kustomization.yaml": (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    ),
    "artifacthub-pkg.yml": "version: 1.0.0\nname: p\nannotations: {a: Pod}\n",
    "chart/Chart.yaml": "apiVersion: v2\nname: c\nversion: 0.1.0\n",
    "chart/values.yaml": "replicas: 1\n",
    "chart/templates/policy.yaml": "{{- if .Values.on }}\nkind: Policy\n{{ end }}\n",
    "chart/templates/sub/more.yaml": "a: {{ .Values.b }}\n",
    "list.yaml": "- a\n- b\n",
    "deployment.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
    "kyverno-test.yaml": "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\n",
    "test/chainsaw-test.yaml": "apiVersion: chainsaw.kyverno.io/v1alpha1\nkind: Test\n",
}


def _repository(folder: Path) -> None:
    (folder / "policy.yaml").write_text(LATEST_POLICY)
    for name, text in FOREIGN.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_files_of_other_tools_cause_notes(command: Command, tmp_path: Path) -> None:
    _repository(tmp_path)
    done = command("lint", tmp_path, "--strict")
    assert done.code == 0, done.out
    assert "error:" not in done.out
    assert done.out.endswith("0 errors, 0 warnings, 9 notes\n")
    found = json.loads(command("lint", tmp_path, "-o", "json").out)
    assert {one["level"] for one in found} == {"note"}
    files = {str(Path(one["file"]).relative_to(tmp_path)) for one in found}
    assert files == set(FOREIGN) - {"kyverno-test.yaml", "test/chainsaw-test.yaml"}


def test_explain_omits_files_of_other_tools(command: Command, tmp_path: Path) -> None:
    _repository(tmp_path)
    done = command("explain", tmp_path)
    assert (done.code, done.err) == (0, "files without policies: 11\n")
    assert "no-latest" in done.out


def test_repeated_notes_are_merged(command: Command, tmp_path: Path) -> None:
    _repository(tmp_path)
    lines = command("lint", tmp_path).out.splitlines()
    assert len(lines) == len({line.partition(": note: ")[2] for line in lines})
    assert sum("a document without a kind (and 3 more)" in line for line in lines) == 1
    assert sum("a template of a Helm chart" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("apiVersion: kyverno.io/v1\nkind: ClusterPolicyy\n", "policy.unknown_kind"),
        ("kind: ClusterPolicy\nmetadata: {name: p}\n", "policy.unknown_kind"),
        ("apiVersion: kyverno.io/v1\nmetadata: {name: p}\n", "policy.unknown_kind"),
        ("apiVersion: kyverno.io/v9\nkind: Policy\n", "policy.unknown_kind"),
        ("apiVersion: kyverno.io/v1\nkind: [ClusterPolicy]\n", "policy.unknown_kind"),
    ],
)
def test_misspelled_policy_is_an_error(
    command: Command, tmp_path: Path, text: str, code: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    assert code in _errors(command, file)


def test_template_outside_a_chart_is_an_error(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "templates" / "p.yaml"
    file.parent.mkdir()
    file.write_text("a: {{ .Values.b }}\n")
    assert command("lint", tmp_path).code == 1


@pytest.mark.parametrize(
    ("expression", "settings", "line"),
    [
        ("images.containers.all(i, getImageData(i) != null)", None, True),
        ("images.containers.all(i, getImageData(i) != null)", {"required": True}, True),
        (
            "images.containers.all(i, getImageData(i) != null)",
            {"required": False},
            False,
        ),
        (
            "images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)",
            None,
            False,
        ),
        ("variables.v > 0", None, False),
    ],
)
def test_images_that_nothing_verifies(
    command: Command,
    tmp_path: Path,
    expression: str,
    settings: dict[str, bool] | None,
    line: bool,  # noqa: FBT001 - a column
) -> None:
    """In a cluster, ``required`` is true by default and fails every such image."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    verifying = "images.containers.map(i, verifyImageSignatures(i, [attestors.a]))[0]"
    spec: dict[str, object] = {
        "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"]}]},
        "matchImageReferences": [{"glob": "*"}],
        "attestors": [{"name": "a", "cosign": {"key": {"data": "k"}}}],
        "validations": [{"expression": expression, "message": "m"}],
    }
    if "variables" in expression:
        spec["variables"] = [{"name": "v", "expression": verifying}]
    if settings is not None:
        spec["validationConfigurations"] = settings
    document = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    done = command("lint", tmp_path / "p.yaml")
    assert ("[lint.unverified_images]" in done.out) is line, done.out
    done = command("lint", tmp_path / "p.yaml", "--target", "cli")
    assert "unverified_images" not in done.out


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("ValidatingPolicy", "deployments", ""),
        ("ValidatingPolicy", "none", ""),
        ("ValidatingPolicy", "trains.v2.jobs.example.com", ""),
        ("ValidatingPolicy", "Deployment", "did you mean deployments?"),
        ("ValidatingPolicy", "trains.v2", "<resource>.<version>.<group>"),
        ("ValidatingPolicy", "trains", "<resource>.<version>.<group>"),
        ("MutatingPolicy", "trains.v2.jobs.example.com", "not mutated"),
        ("ClusterPolicy", "Deployment", ""),
        ("ClusterPolicy", "none", ""),
        ("ClusterPolicy", "all", ""),
        ("ClusterPolicy", "Deployment,Pod", ""),
        ("ClusterPolicy", "deployments", "case-sensitive"),
        ("ClusterPolicy", "Deployment, Job", "not trimmed"),
        ("ClusterPolicy", "trains.v2.jobs.example.com", "policies.kyverno.io"),
    ],
)
def test_controllers_without_effect_are_reported(
    command: Command, tmp_path: Path, kind: str, name: str, said: str
) -> None:
    """A misspelt controller is not checked, although its author believes it is."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    spec: dict[str, Any] = {
        "autogen": {"podControllers": {"controllers": [name]}},
        "matchConstraints": {"resourceRules": [rule]},
    }
    metadata: dict[str, Any] = {"name": "p"}
    if kind == "ValidatingPolicy":
        spec["validations"] = [{"expression": "object.spec.hostPID != true"}]
    elif kind == "MutatingPolicy":
        patch = {"expression": "Object{spec: Object.spec{hostPID: false}}"}
        spec["mutations"] = [
            {"patchType": "ApplyConfiguration", "applyConfiguration": patch}
        ]
    else:
        metadata["annotations"] = {"pod-policies.kyverno.io/autogen-controllers": name}
        validate = {"message": "m", "pattern": {"spec": {"hostPID": False}}}
        match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
        spec = {"rules": [{"name": "r", "match": match, "validate": validate}]}
    group = "kyverno.io" if kind == "ClusterPolicy" else "policies.kyverno.io"
    document = {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    for target in ("server", "cli"):
        done = command("lint", tmp_path / "p.yaml", "--target", target)
        assert ("[lint.autogen_controllers]" in done.out) is bool(said), done.out
        assert said in done.out
