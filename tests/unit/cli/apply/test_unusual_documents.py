"""Odd policies and objects are accepted or rejected as in upstream.

A failure means: another verdict or exit code than ``kyverno apply`` of 1.18.2 has for
an empty list, a kind with too many parts, a name that is no string, or a policy that
the API server enforces itself. Source: docs/behaviour/cli 4, 5; docs/behaviour/engine
10.5, 10.6.
"""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

_HEAD = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
"""
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: a, image: x}]}
"""
_MAP = "\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def _rule(kind: str, fields: str) -> str:
    match = f"match: {{any: [{{resources: {{kinds: [{kind}]}}}}]}}"
    return f"{_HEAD}spec: {{rules: [{{name: r, {match}, {fields}}}]}}\n"


def _passing(more: str = "") -> str:
    return more + 'validate: {pattern: {metadata: {name: "?*"}}}'


_CEL = 'validate: {cel: {expressions: [{expression: "false"}]}}'
_GENERATED = "status: {validatingadmissionpolicy: {generated: true, message: ''}}\n"
_GENERATE = (
    'celPreconditions: [{name: a, expression: "false"}], generate: {apiVersion: v1,'
    " kind: Secret, name: x, namespace: default, data: {type: Opaque}}"
)


@pytest.mark.parametrize(
    ("policy", "resource", "wanted"),
    [
        # An ``exclude`` with an empty list excludes nothing; upstream refuses the rule.
        (_rule("Pod", _passing("exclude: {}, ")), _POD, "pass: 1"),
        (_rule("Pod", _passing("exclude: {any: []}, ")), _POD, "pass: 1"),
        (_rule("Pod", _passing("exclude: {resources: {}}, ")), _POD, "pass: 1"),
        (
            _rule("Pod", _passing("exclude: {resources: {names: []}}, ")),
            _POD,
            "pass: 1",
        ),
        (_rule("Pod", _passing("exclude: {any: null}, ")), _POD, "pass: 1"),
        # The generated rule for Pod controllers has no pattern at all.
        (_rule("Pod", "validate: {anyPattern: []}"), _POD, "skipped"),
        (_rule("ConfigMap", "validate: {anyPattern: []}"), _MAP, "pass: 1"),
        # Kinds with too many parts, or none, match nothing.
        (_rule('a/b/c/d/e, "", /, ConfigMap', _passing()), _MAP, "pass: 1"),
        (_rule("a/b/c/d/e", _passing()), _MAP, "pass: 0"),
        (_rule("ConfigMap", _GENERATE), _MAP, "pass: 1"),
        (_rule("ConfigMap", _passing("celPreconditions: [], ")), _MAP, "skipped"),
        (f"{_HEAD}spec: {{rules: []}}\n", _MAP, "pass: 0"),
        # The API server enforces the policy itself if the policy consists of CEL.
        (_rule("ConfigMap", _CEL), _MAP, "fail: 1"),
        (_rule("ConfigMap", _CEL) + _GENERATED, _MAP, "pass: 0, fail: 0"),
        (_rule("ConfigMap", _passing()) + _GENERATED, _MAP, "pass: 1"),
        (
            _rule("ConfigMap", _CEL) + _GENERATED.replace("true", "false"),
            _MAP,
            "fail: 1",
        ),
    ],
)
def test_policies(
    command: Command, tmp_path: Path, policy: str, resource: str, wanted: str
) -> None:
    """A policy that fails validation is skipped, and that is an error."""
    (tmp_path / "policy.yaml").write_text(policy)
    (tmp_path / "resource.yaml").write_text(resource)
    done = command("apply", tmp_path / "policy.yaml", "-r", tmp_path / "resource.yaml")
    if wanted == "skipped":
        assert "Policies Skipped" in done.out
        assert "pass: 0, fail: 0, warn: 0, error: 1, skip: 0" in done.out
    else:
        assert "Policies Skipped" not in done.out
        assert wanted in done.out
    is_sound = wanted.startswith(("pass: 1", "pass: 0"))
    assert done.code == (0 if is_sound else 1)


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ("{name: 123}", "default/Namespace/"),
        ("{name: no}", "default/Namespace/"),
        ("{name: [a]}", "default/Namespace/"),
        ("{name: a, namespace: 5}", "default/Namespace/a"),
        ("{name: a, generateName: {}}", "default/Namespace/a"),
        ("x", "/Namespace/"),
    ],
)
def test_names_that_are_not_strings(
    command: Command, tmp_path: Path, metadata: str, path: str
) -> None:
    """Names of other types are read as empty strings, and the run continues."""
    policy = _rule("Namespace", "validate: {message: No., deny: {}}")
    (tmp_path / "policy.yaml").write_text(policy)
    resource = f"apiVersion: v1\nkind: Namespace\nmetadata: {metadata}\n"
    other = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"
    (tmp_path / "resource.yaml").write_text(resource + other)
    done = command("apply", tmp_path / "policy.yaml", "-r", tmp_path / "resource.yaml")
    assert (done.code, done.err) == (1, "")
    assert f"resource {path} failed" in done.out
    assert "resource default/Namespace/other failed" in done.out
    assert "fail: 2" in done.out


@pytest.mark.parametrize(
    ("labels", "summary"),
    [
        ("{a: null}", "pass: 1, fail: 0"),
        ("{a: x}", "pass: 1, fail: 0"),
        ("{}", "pass: 0, fail: 0"),
    ],
)
def test_null_label_is_an_empty_one(
    command: Command, tmp_path: Path, labels: str, summary: str
) -> None:
    selector = "selector: {matchLabels: {'*': '*'}}"
    match = f"match: {{any: [{{resources: {{kinds: [ConfigMap], {selector}}}}}]}}"
    rule = f"{{name: r, {match}, {_passing()}}}"
    (tmp_path / "p.yaml").write_text(f"{_HEAD}spec: {{rules: [{rule}]}}\n")
    text = _MAP.replace("{name: a}", f"{{name: a, labels: {labels}}}")
    (tmp_path / "r.yaml").write_text(text)
    done = command("apply", tmp_path / "p.yaml", "-r", tmp_path / "r.yaml")
    assert summary in done.out
