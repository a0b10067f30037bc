"""The reader of chainsaw tests understands every step, or reports that it does not.

A failure means: an end-to-end case passes because one of its steps was skipped.
"""

from pathlib import Path

import pytest

from tests.conformance.place import ABSENT, PRESENT, ROOT
from tests.e2e.chainsaw.documents import DEFAULT_TIMEOUTS_S, Binding
from tests.e2e.chainsaw.index import all_cases, missing_of, stage
from tests.e2e.chainsaw.read import FIELDS, Unreadable, duration_s, read_test

TEST = """
apiVersion: chainsaw.kyverno.io/v1alpha1
kind: Test
metadata: {name: a-test}
spec:
  timeouts: {assert: 7s}
  bindings: [{name: who, value: all}]
  steps:
  - name: make
    bindings: [{name: file, value: b.yaml}]
    use: {template: /steps/make.yaml, with: {bindings: [{name: file, value: c.yaml}]}}
  - try:
    - assert: {file: d.yaml}
    - script:
        content: exit 1
        timeout: 1m30s
        check: {($error != null): true}
    catch:
    - events: {}
    finally:
    - sleep: {duration: 1s}
"""
STEPS = """
apiVersion: chainsaw.kyverno.io/v1alpha1
kind: StepTemplate
metadata: {name: make}
spec:
  bindings: [{name: file, value: a.yaml}]
  try:
  - create:
      file: ($file)
      expect:
      - match: {kind: Pod}
        check: {($error): no}
"""
CONFIGURATION = """
apiVersion: chainsaw.kyverno.io/v1alpha2
kind: Configuration
metadata: {name: configuration}
spec:
  timeouts: {apply: 10s, assert: 1m}
"""


def _write(folder: Path, text: str = TEST) -> Path:
    (folder / "case" / "steps").mkdir(parents=True)
    (folder / ".chainsaw.yaml").write_text(CONFIGURATION)
    (folder / "case" / "steps" / "make.yaml").write_text(STEPS)
    path = folder / "case" / "chainsaw-test.yaml"
    path.write_text(text)
    return path


def test_template_is_inserted_with_its_bindings(tmp_path: Path) -> None:
    test = read_test(_write(tmp_path))
    step = test.steps[0]
    (create,) = step.tries
    assert create.name == "create"
    assert create.fields == {"file": "($file)"}
    assert create.expect[0].match == {"kind": "Pod"}
    assert step.bindings[-1] == Binding("file", "c.yaml")
    assert step.bindings[0] == Binding("file", "a.yaml")


def test_nearest_timeout_applies(tmp_path: Path) -> None:
    """An operation overrides its test, and a test overrides the configuration.

    A timeout that none of them sets has the default value.
    """
    test = read_test(_write(tmp_path))
    create, wanted, script, _events, _sleep = test.operations()
    assert create.timeout_s == 10
    assert wanted.timeout_s == 7
    assert script.timeout_s == 90
    assert test.timeouts_s["delete"] == DEFAULT_TIMEOUTS_S["delete"]


def test_templating_can_be_disabled(tmp_path: Path) -> None:
    """The configuration applies unless the test or the operation overrides it."""
    path = _write(tmp_path)
    off = f"{CONFIGURATION}  templating: {{enabled: false}}\n"
    (tmp_path / ".chainsaw.yaml").write_text(off)
    assert not any(one.is_templated for one in read_test(path).operations())
    path.write_text(TEST.replace("{file: d.yaml}", "{file: d.yaml, template: true}"))
    assert [one.is_templated for one in read_test(path).operations()][1] is True


def test_catch_and_finally_blocks_are_separate(tmp_path: Path) -> None:
    step = read_test(_write(tmp_path)).steps[1]
    assert step.name == "step-02"
    assert [one.name for one in step.tries] == ["assert", "script"]
    assert [one.name for one in step.catches] == ["events"]
    assert [one.name for one in step.finals] == ["sleep"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("assert: {file", "proclaim: {file", "not one known operation"),
        ("assert: {file", "assert: {fail: x, file", "unknown fields fail"),
        ("  bindings: [{name: who", "  binding: [{name: who", "unknown fields binding"),
        ("timeout: 1m30s", "timeout: soon", "not a duration"),
        ("kind: Test", "kind: Toast", "not one Test"),
        ("/steps/make.yaml", "/steps/none.yaml", "No such file"),
    ],
)
def test_unsupported_fields_are_rejected(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    assert old in TEST
    with pytest.raises(Unreadable, match=reason):
        read_test(_write(tmp_path, TEST.replace(old, new)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1m30s", 90), ("2h", 7200), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


def test_required_operations_are_supported() -> None:
    named = "create apply update patch delete assert error script wait sleep events"
    assert set(named.split()) <= set(FIELDS)


def test_case_reports_missing_tags_and_needs() -> None:
    tags = frozenset({"kind:ClusterPolicy", "rule:mutate.psm", "uses:sleep"})
    missing = missing_of(tags, frozenset({"node", "kubeconfig-identity"}))
    assert "environment: node" in missing
    assert "environment: kubeconfig-identity" not in missing
    assert "uses:sleep" not in missing


def test_known_kyverno_setup_step_is_not_missing() -> None:
    tags = frozenset({"kyverno-config:standard,force-failure-policy-ignore"})
    assert missing_of(tags, frozenset()) == ("other configurations of Kyverno",)
    assert missing_of(tags, frozenset(), "unheard-of") != ()
    assert missing_of(tags, frozenset(), "ffpi") == ()


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
def test_every_visible_case_is_supported() -> None:
    for case in all_cases():
        assert read_test(ROOT / case.test).operations(), case.id


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
def test_staged_case_contains_its_scripts(tmp_path: Path) -> None:
    case = next(one for one in all_cases() if "uses:sh-file" in one.tags)
    test = read_test(stage(case, tmp_path))
    scripts = list(test.folder.rglob("*.sh"))
    assert scripts
    assert all(script.stat().st_mode & 0o100 for script in scripts)
