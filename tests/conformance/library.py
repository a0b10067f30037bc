"""Count what ``lint``, ``test`` and ``apply`` give for a library of policies.

``python -m tests.conformance.library [FOLDER]``: a checkout of kyverno/policies, by
default the policies of the conformance data. Prints the counts by outcome. May touch:
standard output, the current folder while ``apply`` runs.
"""

import contextlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kyverno_mp.cli.main import run
from tests.conformance.place import ROOT

_TEST_FILE = "kyverno-test.yaml"
_SUMMARY = re.compile(
    r"^pass: (\d+), fail: (\d+), warn: (\d+), error: (\d+), skip: (\d+)"
)
_LISTS = (
    ("policies", ""),
    ("resources", "-r"),
    ("targetResources", "--target-resource"),
    ("exceptions", "-e"),
)
_FILES = (("variables", "-f"), ("userinfo", "-u"), ("context", "--context-file"))


@dataclass(frozen=True)
class Outcome:
    """One command's outcome: an exit code (for ``apply``: of each run) and counts."""

    exits: Counter[int]
    counts: Counter[str]


def _said(arguments: Iterable[str]) -> tuple[int, str]:
    out, problems = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(problems):
        code = run([*arguments])
    return code, out.getvalue()


def lint(folder: Path) -> Outcome:
    """Return the findings by level and code."""
    code, text = _said(["lint", str(folder), "-o", "json"])
    found = json.loads(text)
    counts = Counter(f"{one['level']} {one['code']}" for one in found)
    return Outcome(Counter([code]), counts)


def test(folder: Path) -> Outcome:
    """Return the rows of all test files by result, and the skipped files."""
    code, text = _said(["test", str(folder), "--remove-color"])
    summary = re.search(r"(\d+) tests? passed and (\d+) tests? failed", text)
    assert summary is not None, text[-2000:]
    counts = Counter({"pass": int(summary[1]), "fail": int(summary[2])})
    skipped = re.search(r"Skipped: (\d+) tests", text)
    counts["skip"] = int(skipped[1]) if skipped else 0
    return Outcome(Counter([code]), counts)


def apply(folder: Path) -> Outcome:
    """Apply the policies of each test file to its objects; return the sums."""
    exits: Counter[int] = Counter()
    counts: Counter[str] = Counter()
    for file in sorted(folder.rglob(_TEST_FILE)):
        with contextlib.chdir(file.parent):
            code, text = _said(["apply", *_arguments(yaml.safe_load(file.read_text()))])
        exits[code] += 1
        for line in filter(None, map(_SUMMARY.match, text.splitlines())):
            names = ("pass", "fail", "warn", "error", "skip")
            counts.update(dict(zip(names, map(int, line.groups()), strict=True)))
    return Outcome(exits, counts)


def _arguments(test_file: dict[str, Any]) -> Iterator[str]:
    for field, flag in _LISTS:
        for one in test_file.get(field) or ():
            yield from filter(None, (flag, one))
    for field, flag in _FILES:
        if test_file.get(field):
            yield from (flag, test_file[field])


def main() -> int:
    """Print the outcomes."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "policies"
    for command in (lint, test, apply):
        found = command(folder.resolve())
        print(f"{command.__name__}: exit {dict(found.exits)}")
        for name, count in sorted(found.counts.items()):
            print(f"  {count:6} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
