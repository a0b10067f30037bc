"""``kyverno-mp apply --policy-report`` gives the real program's results.

A failure means: a report or an exit code of a pipeline changes.
"""

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.main import run
from tests.conformance.cases import Case, runnable
from tests.conformance.ledger import differs
from tests.conformance.place import ABSENT, PRESENT

pytestmark = pytest.mark.skipif(not PRESENT, reason=ABSENT)

_KEYS = ("policy", "rule", "result", "message", "category", "severity", "source")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _comparable(row: dict[str, Any], *, message: bool = True) -> tuple[str, ...]:
    resource = row.get("resource") or row["resources"][0]
    where = (resource.get(k, "") for k in ("apiVersion", "kind", "namespace", "name"))
    texts = (row.get(k, "") for k in _KEYS if message or k != "message")
    # 1.19 adds this property; the recorded verdicts are those of 1.18.2.
    known = {**row.get("properties", {})}
    known.pop("cel.validationIndex", None)
    properties = json.dumps(known, sort_keys=True)
    return (*texts, str(row.get("scored", False)), properties, *where)


def _runs() -> Iterator[Any]:
    for case in runnable():
        expected = case.data("expected.json")
        if not expected or not expected["comparable"]:
            continue
        for index, wanted in enumerate(expected["runs"]):
            if not (wanted.get("network") or wanted.get("not_transferred")):
                yield pytest.param(case, wanted, id=f"{case.id}-{index}")


@pytest.mark.parametrize(("case", "wanted"), list(_runs()))
def test_results(case: Case, wanted: dict[str, Any]) -> None:
    out = io.StringIO()
    arguments = ["apply", *wanted["args"], "--policy-report", "--output-format", "json"]
    with _inside(case.folder), contextlib.redirect_stdout(out):
        code = run(arguments)
    # Here, changed and generated objects are lines, as reports are.
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    reports = [each for each in lines if "results" in each]
    found = [row for report in reports for row in report["results"]]
    unstable = [r for r in wanted["results"] if r.get("unstable")]
    stable = [r for r in wanted["results"] if not r.get("unstable")]
    expected = Counter(_comparable(r) for r in stable)
    actual = Counter(_comparable(r) for r in found)
    for row in unstable:
        bare = _comparable(row, message=False)
        for candidate in found:
            key = _comparable(candidate)
            if _comparable(candidate, message=False) == bare and actual[key]:
                actual[key] -= 1
                break
    actual = +actual
    outputs = [each for each in lines if "results" not in each]
    same = (wanted["exit"], expected, wanted["outputs"]) == (code, actual, outputs)
    with differs(case.id, "apply", same=same):
        assert wanted["outputs"] == outputs
        assert sorted(expected.elements()) == sorted(actual.elements())
        assert wanted["exit"] == code
