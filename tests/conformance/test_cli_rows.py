"""``kyverno-mp test`` gives the real program's rows, exit code and messages.

A failure means: a user's pipeline gets another verdict than before.
"""

import contextlib
import io
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.cli.main import run
from tests.conformance.cases import Case, oracle_rows, runnable
from tests.conformance.ledger import differs
from tests.conformance.place import ABSENT, PRESENT, ROOT

pytestmark = pytest.mark.skipif(not PRESENT, reason=ABSENT)


@contextlib.contextmanager
def _alone(case: Case) -> Iterator[Path]:
    """Yield a folder that contains only this case."""
    if len(list(case.folder.rglob("kyverno-test.yaml"))) == 1:
        yield case.folder
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in case.files:
            target = Path(folder) / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        yield Path(folder)


def _rows(case: Case) -> tuple[int, list[dict[str, str]]]:
    out = io.StringIO()
    with _alone(case) as folder, contextlib.redirect_stdout(out):
        code = run(["test", str(folder), "-o", "json", "--detailed-results"])
    rows: list[dict[str, str]] = []
    decoder = json.JSONDecoder()
    text = out.getvalue()
    position = text.find("\n[")
    while position >= 0:
        found, end = decoder.raw_decode(text, position + 1)
        rows.extend(found)
        position = text.find("\n[", end)
    return code, rows


def _comparable(row: dict[str, str]) -> tuple[str, ...]:
    # A request's row has its path, and the recording ran in the suite's folder.
    return tuple(
        row.get(key.lower(), row.get(key, "")).removeprefix(f"{ROOT / 'cli'}/")
        for key in ("POLICY", "RULE", "RESOURCE", "RESULT", "REASON", "Message")
    )


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in runnable()])
def test_rows(case: Case) -> None:
    code, rows = _rows(case)
    expected = Counter(_comparable(row) for row in oracle_rows()[case.id])
    actual = Counter(_comparable(row) for row in rows)
    real = {row[:3] for row in expected if row[4] != "Excluded"}
    for row in list(actual):
        # The recording omits an Excluded row beside a real one: the real program prints
        # it in some runs only (README of the data).
        if row[4] == "Excluded" and row not in expected and row[:3] in real:
            del actual[row]
    same = (case.exit_code, expected) == (code, actual)
    with differs(case.id, "rows", same=same):
        assert sorted(expected.elements()) == sorted(actual.elements())
        assert case.exit_code == code
