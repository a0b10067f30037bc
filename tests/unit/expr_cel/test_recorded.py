"""Expressions return the real program's recorded results.

``recorded.jsonl`` has a row for each function and for each past difference of this
engine: the expression, the variable ``x``, and the result of Kyverno 1.18.2 (cel-go
0.27, apiserver 0.35.4; ``tests/fuzz/cel_differential`` describes the recording).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.expr.cel.catalogue import kyverno_library
from tests.unit.expr_cel.outcome import outcome

_HERE = Path(__file__).parent
_LINES = (_HERE / "recorded.jsonl").read_text(encoding="utf-8").splitlines()
OBJECT = json.loads(_LINES[0])["object"]
ROWS: list[dict[str, Any]] = [json.loads(line) for line in _LINES[1:]]
_OUTSIDE = (
    *("random", "random.random", "time.now", "apply", "generate"),
    *("get", "list", "post", "toGVR", "client", "getMetadata", "dyn"),
    # New in 1.19, with the examples of cel-go in test_kyverno_libraries.py.
    *("regex.extract", "regex.extractAll", "regex.replace"),
)


@pytest.mark.parametrize("row", ROWS, ids=[row["e"][:60] for row in ROWS])
def test_outcome_equals_kyvernos(row: dict[str, Any]) -> None:
    found = outcome(row["e"], OBJECT, row.get("x"))
    assert [*found] == row["real"]


def test_each_pure_function_has_a_row() -> None:
    library = kyverno_library()
    named = {
        name.removeprefix("math.@").rpartition(".")[2]
        for name in (*library.functions, *library.members)
        if name[0].isalpha() and name.lower() not in map(str.lower, _OUTSIDE)
    }
    text = " ".join(row["e"] for row in ROWS)
    least = {"min": "least", "max": "greatest"}
    missing = [
        name
        for name in named
        if f"{name}(" not in text
        and f"{least.get(name, name)}(" not in text
        and name != "in"
    ]
    assert not [name for name in missing if not _is_authorization(name)]


def _is_authorization(name: str) -> bool:
    overloads = kyverno_library().members.get(name, ())
    return any("authorization" in one.args[0].name for one in overloads)
