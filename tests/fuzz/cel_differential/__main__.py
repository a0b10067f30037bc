"""Run the comparison; the package's docstring says how."""

import argparse
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from kyverno_mp.expr.cel.catalogue import kyverno_library
from tests.fuzz.cel_differential.generate import Generator, calls
from tests.fuzz.cel_differential.samples import OBJECT, variables
from tests.unit.expr_cel.outcome import outcome

_KINDS = {
    "x": "panic",
    "c": "compile",
    "p": "program",
    "e": "error",
    "v": "value",
}
_OPAQUE = re.compile(r"kubernetes\.(Semver|URL):[^,)\]}]*")
_LENGTH_MAX = 3_000
_REPEATED = 4
"""Results that change from run to run, e.g. by the order of Go's maps, are ignored."""


def _asked(program: str, rows: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    lines = "".join(json.dumps({"e": e, "v": v}) + "\n" for _, e, v in rows)
    done = subprocess.run(
        [program], input=lines, capture_output=True, text=True, check=True
    )
    return [_answer(json.loads(line)) for line in done.stdout.split("\n") if line]


def _answer(answer: dict[str, Any]) -> tuple[str, str]:
    for key, kind in _KINDS.items():
        if key in answer:
            text = answer[key]
            return kind, _OPAQUE.sub(r"O:kubernetes.\1", text) if key == "v" else text
    return "panic", "no answer"


def _ours(row: tuple[str, str, str]) -> tuple[str, str]:
    try:
        return outcome(row[1], OBJECT, json.loads(row[2])["x"])
    except Exception as error:  # noqa: BLE001 - any is a defect, and is reported
        return "crash", repr(error)


def main() -> None:
    """Compare, print the counts, and write the rows that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the other implementation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=20, help="calls of each function")
    parser.add_argument("--free", type=int, default=2000, help="other expressions")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write what differs")
    given = parser.parse_args()
    random = Random(given.seed)
    generator = Generator(random, calls(kyverno_library()))
    made = [
        *generator.expressions(given.each, given.depth),
        *generator.free(given.free, given.depth),
    ]
    rows = [
        (label, text, variables(random))
        for label, text in made
        if len(text) < _LENGTH_MAX and "time.now" not in text
    ]
    real = _asked(given.program, rows)
    found = [
        (row, ours, theirs)
        for row, ours, theirs in zip(rows, map(_ours, rows), real, strict=True)
        if ours != theirs
    ]
    for _ in range(_REPEATED):
        again = _asked(given.program, [row for row, _, _ in found]) if found else []
        found = [
            one for one, answer in zip(found, again, strict=True) if answer == one[2]
        ]
    if given.out is not None:
        text = "".join(
            json.dumps({"e": row[1], "v": row[2], "ours": ours, "real": theirs}) + "\n"
            for row, ours, theirs in found
        )
        given.out.write_text(text, encoding="utf-8")
    kinds = Counter(f"{ours[0]} for {theirs[0]}" for _, ours, theirs in found)
    print(f"{len(rows)} evaluations: {dict(Counter(kind for kind, _ in real))}")
    print(f"{len(found)} differ: {dict(kinds)}")


if __name__ == "__main__":
    main()
