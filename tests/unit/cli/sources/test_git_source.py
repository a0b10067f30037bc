"""Policies and tests can be read from git repositories, but nothing else can."""

import os
import subprocess
from pathlib import Path

import pytest

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.git import Target, is_git, target_of
from tests.unit.cli.conftest import LATEST_POLICY, Command

TEST_FILE = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pods.yaml]
results:
- {policy: no-latest, rule: tagged, kind: Pod, resources: [good], result: pass}
- {policy: no-latest, rule: tagged, kind: Pod, resources: [bad], result: fail}
"""


@pytest.fixture
def repository(tmp_path: Path, pods_file: Path) -> Path:
    root = tmp_path / "repository"
    (root / "rules").mkdir(parents=True)
    (root / "rules" / "policy.yaml").write_text(LATEST_POLICY)
    (root / "rules" / "pods.yaml").write_text(pods_file.read_text())
    (root / "rules" / "kyverno-test.yaml").write_text(TEST_FILE)
    (root / "broken.yaml").write_text("a: [")
    (root / "link.yaml").symlink_to("/etc/hostname")

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", "-C", root, *who, *arguments], check=True)

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return root


def test_apply(command: Command, repository: Path, pods_file: Path) -> None:
    done = command("apply", repository.as_uri(), "-r", pods_file)
    assert "Applying 3 policy rule(s) to 2 resource(s)..." in done.out
    assert done.code == 1


def test_tests_of_a_branch(command: Command, repository: Path) -> None:
    done = command("test", repository.as_uri(), "-b", "main")
    assert "2 tests passed and 0 tests failed" in done.out
    assert done.code == 0


def test_unknown_branch(command: Command, repository: Path, pods_file: Path) -> None:
    url = repository.as_uri()
    done = command("apply", url, "-r", pods_file, "-b", "gone")
    assert done.code == 1
    assert "Error: failed to clone repository (" in done.err


@pytest.mark.parametrize(
    ("url", "branch", "target"),
    [
        ("https://h/o/r", "", Target("https://h/o/r", "main")),
        ("https://h/o/r/a/b", "", Target("https://h/o/r", "a/b")),
        ("https://h/o/r/a/b", "main", Target("https://h/o/r", "main", "a/b")),
        ("file:///x/y", "", Target("file:///x/y", "")),
    ],
)
def test_parts_of_urls(url: str, branch: str, target: Target) -> None:
    assert target_of(url, branch) == target


@pytest.mark.parametrize(
    ("url", "branch"),
    [
        ("https://h/o", ""),
        ("https://h/o/r", "--upload-pack=x"),
        ("https://h/o/r/../x", "m"),
    ],
)
def test_rejected_urls(url: str, branch: str) -> None:
    with pytest.raises(CommandFailed, match="failed to parse URL"):
        target_of(url, branch)


@pytest.mark.parametrize("url", ["ssh://h/o/r", "ext::sh -c x://", "git://h/o/r"])
def test_rejected_schemes(url: str) -> None:
    with pytest.raises(CommandFailed, match="is not supported"):
        is_git(url)


def test_password_is_not_in_the_command_line(
    command: Command, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" > {seen}\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    command(
        "apply", repository.as_uri(), "-r", repository,
        "--username", "u", "--password", "geheim",
    )  # fmt: skip
    assert "clone" in seen.read_text()
    assert "geheim" not in seen.read_text()
