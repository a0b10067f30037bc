"""The files and console sessions in docs/first-policy.md are correct.

A failure means: a new user who follows the page gets other output than it shows.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs.citing import ROOT

PAGE = (ROOT / "docs/first-policy.md").read_text()
_FILE = re.compile(
    r"[Ww]rite `(?P<name>[\w./-]+)`[^\n]*:\n\n```\w+\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_SESSION = re.compile(
    r"^```console\n\$ (?P<command>[^\n]+)\n(?P<said>.*?)^```$", re.DOTALL | re.MULTILINE
)
SESSIONS = [found.groups() for found in _SESSION.finditer(PAGE)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files that the page shows."""
    files = [found.group("name", "text") for found in _FILE.finditer(PAGE)]
    assert len(files) == PAGE.count("rite `")
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def _lines(text: str) -> list[str]:
    """Editors may remove blanks at the ends of lines."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _run(command: str, folder: Path) -> tuple[int, str]:
    program, *arguments = command.split()
    assert program == "kyverno-mp"
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("command", "said"), SESSIONS, ids=[one[0] for one in SESSIONS]
)
def test_sessions_are_accurate(folder: Path, command: str, said: str) -> None:
    code, shown = _run(command, folder)
    assert _lines(shown) == _lines(said)
    assert code == (1 if "fail: 1" in said else 0)


def test_every_command_has_a_session() -> None:
    assert [command.split()[1] for command, _ in SESSIONS] == ["lint", "apply", "test"]


def test_example_mistake_is_reported_as_shown(folder: Path) -> None:
    policy = folder / "policies/require-team.yaml"
    policy.write_text(policy.read_text().replace("pattern:", "patern:"))
    found = re.search(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    code, shown = _run("kyverno-mp lint policies", folder)
    assert (code, _lines(shown)) == (1, _lines(found[1]))
