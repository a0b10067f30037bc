"""Files of ``apply -e`` are validated as an API server validates what it stores.

A failure means: an exception that upstream rejects exempts objects here, or a name that
does not resolve ends the run. Source: docs/behaviour/cli 4, 12; the real program.
"""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command, pod

_RULE = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {message: refused, deny: {}}
"""
_OF_RULES = """
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: %s
spec:
  exceptions: [{policyName: p, ruleNames: [r]}]
  match: {any: [{resources: {kinds: [Pod]}}]}
"""
_OF_CEL = """
apiVersion: policies.kyverno.io/v1
kind: PolicyException
metadata: %s
spec: {policyRefs: [{name: v, kind: ValidatingPolicy}]}
"""
_EVENT = "{apiVersion: v1, kind: Event, name: a, uid: u}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(_RULE)
    (tmp_path / "r.yaml").write_text(pod("good"))
    return tmp_path


@pytest.mark.parametrize("text", [_OF_RULES, _OF_CEL])
@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ("{name: e, labels: {a: '-1'}}", "metadata.labels"),
        ("{name: e, annotations: {'a b': x}}", "metadata.annotations"),
        ("{name: E_x}", "metadata.name"),
        ("{name: e, namespace: Bad_ns}", "metadata.namespace"),
        ("{name: '', generateName: e-}", "metadata.name"),
        ("{name: e, finalizers: ['a b']}", "metadata.finalizers"),
        ("{name: e, creationTimestamp: abc}", "metadata.creationTimestamp"),
        (
            "{name: e, ownerReferences: [" + _EVENT + "]}",
            "metadata.ownerReferences",
        ),
    ],
)
def test_metadata_is_validated(
    command: Command, files: Path, text: str, metadata: str, place: str
) -> None:
    (files / "e.yaml").write_text(text % metadata)
    flags = ("-r", files / "r.yaml", "-e", files / "e.yaml")
    done = command("apply", files / "p.yaml", *flags)
    assert done.code == 1
    assert "failed to load exceptions" in done.err
    assert place in done.err


def test_unresolvable_name_is_an_expression_error(
    command: Command, files: Path
) -> None:
    entry = "- {name: x, variable: {jmesPath: \"is_external_url('http://')\"}}"
    text = _RULE.replace("    validate:", f"    context:\n    {entry}\n    validate:")
    text = text.replace("message: refused", "message: 'is {{ x }}'")
    (files / "p.yaml").write_text(text)
    done = command("apply", files / "p.yaml", "-r", files / "r.yaml")
    assert done.code == 1
    assert "fail: 1" in done.out


_CONDITION = """
  conditions: {any: [{key: "{{ a./b }}", operator: Equals, value: x}]}
"""


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("a./b", "Unknown char: '/'"),
        ("to_upper('a', 'b')", "to_upper: incorrect number of args"),
        ("to_uper('a')", "to_uper: unknown function: to_uper"),
    ],
)
def test_a_condition_that_always_fails_is_a_warning(
    command: Command, files: Path, query: str, reason: str
) -> None:
    """The exception exempts nothing, and says why."""
    text = _OF_RULES % "{name: e, namespace: ex}" + _CONDITION.lstrip("\n")
    text = text.replace("a./b", query)
    (files / "e.yaml").write_text(text)
    (files / "p.yaml").write_text(_RULE.replace("deny: {}", "pattern: {kind: No}"))
    words = ("apply", files / "p.yaml", "-r", files / "r.yaml", "-e", files / "e.yaml")
    done = command(*words)
    assert (done.code, "fail: 1" in done.out) == (1, True)
    assert done.err.startswith("warning: exception ex/e: spec.conditions.any[0].key")
    assert reason in done.err


def test_warnings_as_errors(command: Command, files: Path) -> None:
    """Without the flag, a run with warnings only ends with 0."""
    text = _OF_RULES % "{name: e, namespace: ex}" + _CONDITION.lstrip("\n")
    (files / "e.yaml").write_text(text)
    (files / "p.yaml").write_text(_RULE.replace("deny: {}", "pattern: {kind: Pod}"))
    words = ("apply", files / "p.yaml", "-r", files / "r.yaml")
    assert command(*words, "--warnings-as-errors").code == 0
    with_exception = (*words, "-e", files / "e.yaml")
    assert command(*with_exception).code == 0
    done = command(*with_exception, "--warnings-as-errors")
    assert done.code == 1
    assert "Error: found 1 warning and --warnings-as-errors is set" in done.err


def test_warnings_as_errors_of_tests(command: Command, files: Path) -> None:
    (files / "p.yaml").write_text(_RULE.replace("deny: {}", "pattern: {kind: No}"))
    (files / "r.yaml").write_text(pod("a") + pod("a"))
    results = "[{policy: p, rule: r, kind: Pod, resources: [a], result: fail}]"
    test = "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
    test += f"policies: [p.yaml]\nresources: [r.yaml]\nresults: {results}\n"
    (files / "kyverno-test.yaml").write_text(test)
    done = command("test", files)
    assert (done.code, "duplicated resource" in done.out) == (0, True)
    for jobs in (1, 2):
        done = command("test", files, "--warnings-as-errors", "--jobs", jobs)
        assert done.code == 1
        assert "found 1 warning" in done.err
