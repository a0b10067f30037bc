"""The GitHub action and the pre-commit hooks run the declared commands.

A failure means: every user's next pull request fails, or is not checked.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import LATEST_POLICY, pod

ROOT = Path(__file__).resolve().parents[4]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a user's repository, and the path of the installed program."""
    bin_folder = tmp_path / "runner" / "kyverno-mp" / "bin"
    bin_folder.mkdir(parents=True)
    program = bin_folder / "kyverno-mp"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kyverno_mp "$@"\n')
    program.chmod(0o755)
    found = tmp_path / "repository"
    found.mkdir()
    (found / "policy.yaml").write_text(LATEST_POLICY)
    (found / "broken.yaml").write_text(LATEST_POLICY.replace("rules:", "rulez:"))
    (found / "good.yaml").write_text(pod("good"))
    (found / "bad.yaml").write_text(pod("bad", "nginx:latest"))
    (found / "kustomization.yaml").write_text("resources: [policy.yaml]\n")
    return found


def _step(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the last step as a runner does: the inputs are only in its environment."""
    step = ACTION["runs"]["steps"][-1]
    given = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
    given |= inputs
    env = {}
    for name, text in step["env"].items():
        assert text.startswith("${{ inputs.")
        env[name] = given[text.removeprefix("${{ inputs.").removesuffix(" }}")]
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**os.environ, "RUNNER_TEMP": str(folder.parent / "runner"), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("inputs", "code", "out"),
    [
        ({"policies": "policy.yaml"}, 0, ""),
        ({"policies": "broken.yaml"}, 1, "::error file=broken.yaml,line=9,"),
        ({"policies": "policy.yaml\nkustomization.yaml"}, 0, "::notice file=kustom"),
        (
            {"command": "apply", "policies": "policy.yaml", "resources": "good.yaml"},
            0,
            "",
        ),
        (
            {
                "command": "apply",
                "policies": "policy.yaml",
                "resources": "good.yaml bad.yaml",
            },
            1,
            "::error file=bad.yaml,line=10,",
        ),
        (
            {"policies": "broken.yaml", "arguments": "--ignore policy.*"},
            0,
            "",
        ),
        ({"command": "test", "policies": ".", "arguments": "--require-tests"}, 1, ""),
        ({"command": "serve", "policies": "."}, 1, "::error title=kyverno-mp::"),
        ({"policies": "policy.yaml; exit 9"}, 1, ""),
        ({"policies": "$(touch hacked) `touch hacked`"}, 1, ""),
    ],
)
def test_action(repository: Path, inputs: dict[str, str], code: int, out: str) -> None:
    done = _step(repository, **inputs)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(out)
    assert bool(done.stdout) == bool(out)
    assert not (repository / "hacked").exists()


def test_action_is_well_formed() -> None:
    assert {"name", "description", "inputs", "runs"} <= set(ACTION)
    assert ACTION["runs"]["using"] == "composite"
    for one in ACTION["inputs"].values():
        assert set(one) <= {"description", "required", "default"}
        assert one["description"]
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an input could run commands"
        assert ("shell" in step) == ("run" in step)
        assert ("uses" in step) != ("run" in step)


def _hook(name: str) -> dict[str, Any]:
    (found,) = (one for one in HOOKS if one["id"] == name)
    return dict(found)


@pytest.mark.parametrize(
    ("name", "files", "code"),
    [
        ("kyverno-mp-lint", ["policy.yaml", "kustomization.yaml", "good.yaml"], 0),
        ("kyverno-mp-lint", ["policy.yaml", "broken.yaml"], 1),
        ("kyverno-mp-test", ["policy.yaml"], 0),
    ],
)
def test_hooks(repository: Path, name: str, files: list[str], code: int) -> None:
    """Run a hook as pre-commit does, with entry, arguments, and changed files."""
    hook = _hook(name)
    program, *words = shlex.split(hook["entry"])
    assert program == "kyverno-mp"
    given = files if hook.get("pass_filenames", True) else []
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", *words, *hook.get("args", []), *given],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr


def test_hooks_are_well_formed() -> None:
    """``pre-commit try-repo . kyverno-mp-lint`` runs a hook in a real repository."""
    for hook in HOOKS:
        assert {"id", "name", "entry", "language", "description"} <= set(hook)
        assert hook["language"] == "python"
        assert hook["types"] == ["yaml"]


@pytest.mark.parametrize(("head", "code"), [("bad.yaml", 1), ("good.yaml", 0)])
def test_action_previews_a_change(
    repository: Path, monkeypatch: pytest.MonkeyPatch, head: str, code: int
) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(repository.parent / name))
    (repository.parent / "GITHUB_STEP_SUMMARY").write_text("before\n")
    done = _step(
        repository,
        command="compare",
        policies="policy.yaml",
        base="good.yaml",
        head=head,
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    summary = (repository.parent / "GITHUB_STEP_SUMMARY").read_text()
    assert summary.startswith("before\n### ")
    assert ("| now denied | 1 |" in summary) is bool(code)
    output = (repository.parent / "GITHUB_OUTPUT").read_text()
    preview = Path(output.removeprefix("preview=").strip())
    assert summary == "before\n" + preview.read_text()
