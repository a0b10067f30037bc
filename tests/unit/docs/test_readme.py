"""The README is short and correct.

A failure means: the first page misleads a new user.
"""

import json
import re

import pytest

from tests.fuzz.bench import Bench
from tests.unit.docs.citing import ROOT

README = (ROOT / "README.md").read_text()
LINES_MAX = 120
_BLOCK = re.compile(r"^```(?:sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = _BLOCK.findall(README)
TESTS = "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox"


def _figures() -> list[tuple[str, str]]:
    """Return (figure, command) for each row of the comparison table."""
    table = README.partition("| | kyverno-mp |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert len(rows) >= 5
    return [
        (figure, command.strip(" `"))
        for _, ours, theirs, command in rows
        for figure in re.findall(r"\d[\d,.]*\d|\d+", f"{ours} {theirs}")
    ]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


@pytest.mark.parametrize(("figure", "command"), _figures())
def test_figures_are_documented_with_their_command(figure: str, command: str) -> None:
    """docs/performance.md describes the method; the README repeats no other figure."""
    page = (ROOT / "docs/performance.md").read_text()
    assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", page)
    script = command.split()[1]
    assert script in page
    assert (ROOT / script).is_file()


def test_first_denial_equals_the_servers_answer() -> None:
    samples = ROOT / "config/samples"
    files = sorted((samples / "policies").glob("*.yaml"))
    bench = Bench("\n---\n".join(path.read_text() for path in files))
    review = json.loads((samples / "reviews/pod-denied.json").read_text())
    message = bench.post(json.dumps(review).encode())["status"]["message"]
    (shown,) = (block for block in BLOCKS if "was blocked due to" in block)
    assert [line.rstrip() for line in message.strip().splitlines()] == [
        line.rstrip() for line in shown.strip().splitlines()
    ]


def test_ci_runs_the_documented_test_command() -> None:
    assert f"{TESTS}\n" in BLOCKS
    gate = (ROOT / ".ci/run").read_text()
    for part in TESTS.split(" && "):
        assert re.search(rf"^{re.escape(part)}\b", gate, re.MULTILINE), part


def test_paths_of_commands_exist() -> None:
    for block in BLOCKS:
        for name in re.findall(r"\b(?:config|deploy|perf)/[\w./-]+", block):
            assert (ROOT / name).exists(), name
