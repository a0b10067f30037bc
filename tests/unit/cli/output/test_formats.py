"""Annotations and TAP are well-formed, and no text can escape its field.

A failure means: a policy's message forges a result or a workflow command.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.output import github, tap
from kyverno_mp.cli.output.junit import ERROR, FAILURE, SKIPPED, Case
from kyverno_mp.cli.output.sarif import Finding
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

NASTY = (
    "a # b \\ %0A ::error::c\r\n- ok 9 # SKIP\n...\n  ---\t"
    "\x85\x1b[0m\u2028é\U0001f600'\""
)


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (
            Finding("c", "error", "text", "a.yaml", 3, 7, "ns/Pod/p"),
            "::error file=a.yaml,line=3,col=7,title=c::text (ns/Pod/p)\n",
        ),
        (Finding("c", "warning", "100% x"), "::warning title=c::100%25 x\n"),
        (Finding("c", "note", "a: b, c"), "::notice title=c::a: b, c\n"),
        (
            Finding("k:v,w", "error", "one\r\ntwo", "d:/a, b%.yaml", 1),
            "::error file=d%3A/a%2C b%25.yaml,line=1,title=k%3Av%2Cw::one%0D%0Atwo\n",
        ),
        (Finding("c", "error", ""), "::error title=c::c\n"),
        (Finding("c", "error", "t", "-", 4), "::error title=c::t\n"),
    ],
)
def test_annotation(finding: Finding, line: str) -> None:
    assert github.render([finding]) == line


def test_annotations_use_paths_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = Finding("c", "error", "t", str(tmp_path / "sub" / "a.yaml"))
    outside = Finding("c", "error", "t", "/elsewhere/a.yaml")
    first, second = github.render([inside, outside]).splitlines()
    assert first.startswith("::error file=sub/a.yaml,")
    assert second.startswith("::error file=/elsewhere/a.yaml,")


def read_tap(text: str) -> list[dict[str, Any]]:
    """Read TAP 14 strictly: version, plan, points in order, indented YAML blocks."""
    lines = text.split("\n")
    assert lines.pop() == ""
    assert lines[0] == "TAP version 14"
    plan = re.fullmatch(r"1\.\.(\d+)", lines[1])
    assert plan is not None
    points: list[dict[str, Any]] = []
    rest = iter(lines[2:])
    for line in rest:
        if line == "  ---":
            block = []
            while (inner := next(rest)) != "  ...":
                assert inner.startswith("  ")
                block.append(inner[2:])
            points[-1]["yaml"] = yaml.safe_load("\n".join(block))
            continue
        found = re.fullmatch(
            r"(ok|not ok) (\d+) - ((?:[^\\#]|\\.)*?)(?: # SKIP ?(.*))?", line
        )
        assert found is not None, line
        name = re.sub(r"\\(.)", r"\1", found[3])
        points.append({"ok": found[1] == "ok", "name": name, "skip": found[4]})
        assert int(found[2]) == len(points)
    assert len(points) == int(plan[1])
    return points


def test_tap() -> None:
    cases = [
        Case("p", "r", "o"),
        Case("p", "r", "bad", FAILURE, "why", "why"),
        Case("p", "r", "worse", ERROR, "why", "more"),
        Case("p", "", "left", SKIPPED, "no # reason"),
        Case("p", "r", "left", SKIPPED),
    ]
    assert read_tap(tap.render(cases)) == [
        {"ok": True, "name": "p r o", "skip": None},
        {
            "ok": False,
            "name": "p r bad",
            "skip": None,
            "yaml": {"message": "why", "severity": "failure"},
        },
        {
            "ok": False,
            "name": "p r worse",
            "skip": None,
            "yaml": {"message": "why", "severity": "error", "diagnostics": "more"},
        },
        {"ok": True, "name": "p left", "skip": r"no \# reason"},
        {"ok": True, "name": "p r left", "skip": ""},
    ]
    assert tap.render([]) == "TAP version 14\n1..0\n"


def test_texts_are_escaped_in_tap() -> None:
    points = read_tap(tap.render([Case(NASTY, "r", NASTY, FAILURE, NASTY, NASTY)] * 2))
    assert [one["ok"] for one in points] == [False, False]
    assert points[0]["yaml"]["message"] == NASTY


def test_texts_are_escaped_in_annotations() -> None:
    text = github.render([Finding(NASTY, "error", NASTY, NASTY, 1, 1, NASTY)])
    assert text.count("\n") == 1
    assert "\r" not in text
    assert text.endswith("\n")
    properties = text.removeprefix("::error ").partition("::")[0]
    assert len(properties.split(",")) == 4


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    policy, pods = tmp_path / "policy.yaml", tmp_path / "pods.yaml"
    policy.write_text(LATEST_POLICY)
    pods.write_text(pod("good") + pod("bad", "nginx:latest"))
    return policy, pods


def test_apply(command: Command, files: tuple[Path, Path]) -> None:
    policy, pods = files
    done = command("apply", policy, "-r", pods, "--output-format", "tap")
    points = read_tap(done.out)
    assert done.code == 1
    assert {one["name"]: one["ok"] for one in points} == {
        "no-latest tagged apps/Pod/good": True,
        "no-latest tagged apps/Pod/bad": False,
    }
    done = command("apply", policy, "-r", pods, "--output-format", "github")
    line = pods.read_text().splitlines().index("    image: nginx:latest") + 1
    message = (
        "validation error: A tag is required. rule tagged failed at path"
        " /spec/containers/0/image/ (apps/Pod/bad)"
    )
    start = f"::error file={str(pods).replace(':', '%3A')},line={line},"
    assert done.code == 1
    assert done.out.startswith(start)
    assert done.out.endswith(f",title=no-latest/tagged::{message}\n")


def test_test(command: Command, files: tuple[Path, Path]) -> None:
    policy, pods = files
    file = policy.parent / "kyverno-test.yaml"
    file.write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
        f"policies: [{policy.name}]\nresources: [{pods.name}]\nresults:\n"
        "- {policy: no-latest, rule: tagged, resources: [good, bad], kind: Pod,"
        " result: pass}\n"
    )
    done = command("test", policy.parent, "-o", "tap")
    assert done.code == 1
    assert {one["name"]: one["ok"] for one in read_tap(done.out)} == {
        "no-latest tagged v1/Pod/apps/good": True,
        "no-latest tagged v1/Pod/apps/bad": False,
    }
    done = command("test", policy.parent, "-o", "github")
    assert done.code == 1
    assert re.fullmatch(
        rf"::error file={re.escape(str(file))},line=7,col=\d+,"
        r"title=test/no-latest/tagged::[^\n]*v1/Pod/apps/bad\)\n",
        done.out,
    )


def test_lint(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(LATEST_POLICY.replace("validate:", "validates:"))
    done = command("lint", file, "-o", "github")
    assert done.code == 1
    line = file.read_text().splitlines().index("    validates:") + 1
    start = f"::error file={file},line={line},col=5,title=policy.unknown_field::"
    assert start in done.out
