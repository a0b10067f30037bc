"""Print the differences of two sides: a table, JSON or markdown.

Room: cli. Takes: Differences. Gives: one text. Next: cli/report/text, for columns and
escapes. Source: docs/preview.md (output).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

from kyverno_mp.cli.compare.differences import CHANGES, Difference, Differences
from kyverno_mp.cli.replay.changes import UNCHANGED
from kyverno_mp.cli.report.text import cell_text, columns, shown
from kyverno_mp.limits import COMPARED_DIFF_LINES_MAX, COMPARED_LISTED_MAX

_WORDS: Final = {
    "denied": "now denied",
    "undecidable": "not decidable",
    "audited": "now fails an audit",
    "mutated": "mutated differently",
    "generated": "generated differently",
    "allowed": "now allowed",
    UNCHANGED: "unchanged",
}
_HEADS: Final = ("CHANGE", "OBJECT", "POLICIES", "REASON")
_REASON_LENGTH_MAX: Final = 300
_TICKS: Final = re.compile("`+")


def table(differences: Differences, about: str) -> str:
    """Return the counts, a row for each difference, and the diffs."""
    output = f"{about}\n\n" + columns(
        [("CHANGE", "OBJECTS"), *_counts(differences)], numbers_from=1
    )
    listed = differences.listed[:COMPARED_LISTED_MAX]
    if listed:
        rows = [tuple(shown(cell) or "-" for cell in _cells(row)) for row in listed]
        output += "\n" + columns([_HEADS, *rows])
    for row in listed:
        if row.diff:
            output += f"\n{shown(row.object)}: {_WORDS[row.change]}\n"
            output += "".join(f"  {shown(line)}\n" for line in _lines(row))
    return output + _rest(differences)


def as_json(differences: Differences, about: str) -> str:
    """Return all differences.

    Shape: ``{"compared": "...", "objects": 3, "changes": {"denied": 1, ...}, "list":
    [{"change": "denied", "object": "Pod apps/web", "policies": [], "reasons": [],
    "needs": [], "diff": []}]}``, without empty lists.
    """
    listed = [
        {name: value for name, value in asdict(row).items() if value != ()}
        for row in differences.listed
    ]
    changes = differences.changes
    document = {
        "compared": about,
        "objects": differences.objects,
        "changes": {change: changes[change] for change in (*CHANGES, UNCHANGED)},
        "list": listed,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def markdown(differences: Differences, about: str) -> str:
    """Return a comment for a pull request: counts, then a section for each change."""
    lines = ["### What policies say about this change", "", cell_text(about), ""]
    lines += _rows(("Change", "Objects"), _counts(differences))
    listed = differences.listed[:COMPARED_LISTED_MAX]
    for change, rows in groupby(listed, lambda row: row.change):
        lines += ["", f"#### {_WORDS[change].capitalize()}", ""]
        section = list(rows)
        lines += _rows(
            ("Object", "Policies", "Reason"), [_cells(row)[1:] for row in section]
        )
        for row in section:
            lines += _fenced(row)
    return "\n".join(lines) + "\n" + _rest(differences)


def _counts(differences: Differences) -> list[tuple[str, str]]:
    changes = differences.changes
    return [
        (_WORDS[change], f"{changes[change]:,}") for change in (*CHANGES, UNCHANGED)
    ]


def _cells(row: Difference) -> tuple[str, ...]:
    reason = "; ".join(row.reasons or row.needs)
    if len(reason) > _REASON_LENGTH_MAX:
        reason = f"{reason[:_REASON_LENGTH_MAX]} ..."
    return _WORDS[row.change], row.object, ", ".join(row.policies), reason


def _lines(row: Difference) -> list[str]:
    lines = list(row.diff[:COMPARED_DIFF_LINES_MAX])
    rest = len(row.diff) - len(lines)
    return [*lines, f"... and {rest:,} more lines"] if rest > 0 else lines


def _fenced(row: Difference) -> Iterator[str]:
    """Yield a diff that can be unfolded; nothing in it ends the block early."""
    if not row.diff:
        return
    lines = [shown(line) for line in _lines(row)]
    longest = max(
        (len(run) for line in lines for run in _TICKS.findall(line)), default=0
    )
    fence = "`" * max(3, longest + 1)
    yield from ("", f"<details><summary>{cell_text(row.object)}</summary>", "")
    yield from (f"{fence}diff", *lines, fence, "", "</details>")


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + [
        "| " + " | ".join(cell_text(shown(cell)) or "-" for cell in row) + " |"
        for row in rows
    ]


def _rest(differences: Differences) -> str:
    rest = len(differences.listed) - COMPARED_LISTED_MAX
    return f"\n... and {rest:,} more differences (json lists all)\n" if rest > 0 else ""
