"""Print the result of a replay: tables, JSON or markdown.

Room: cli. Takes: Tables, facts about the recording. Gives: one text. Next:
cli/report/text, for columns and escapes.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.cli.replay.changes import CHANGES, UNCHANGED, Change, Tables
from kyverno_mp.cli.report.text import cell_text, columns, shown
from kyverno_mp.values.jsonvalue import Json

_WORDS: Final = {
    "denied": "now denied",
    "undecidable": "not decidable",
    "mutated": "mutated differently",
    "allowed": "now allowed",
    UNCHANGED: "unchanged",
}
_LISTED: Final = ("CHANGE", "OPERATION", "OBJECT", "USER", "POLICIES", "REASON")
_REASON_LENGTH_MAX: Final = 160


@dataclass(frozen=True, slots=True)
class Facts:
    """The recording's period and sampling, and the other side of the comparison."""

    start_ms: int
    end_ms: int
    one_of: int
    against: str
    """"the recorded answers", or the paths of the previous policies."""


def table(tables: Tables, facts: Facts, rows_max: int) -> str:
    """Return counts, groups, missing data, and the requests."""
    output = f"{_about(tables, facts)}\n\n"
    counted = [("CHANGE", "REQUESTS"), *_counts(tables)]
    output += columns(counted, numbers_from=1)
    for dimension, values in tables.by.items():
        if values:
            heads = (dimension.upper(), *(_WORDS[change].upper() for change in CHANGES))
            rows = [(shown(name), *row) for name, row in _rows(values)]
            output += "\n" + columns([heads, *rows], numbers_from=1)
    if tables.needs:
        output += "\nNot decidable from the recording:\n"
        for need, number in tables.needs.most_common():
            output += f"  {shown(need)} ({number:,} requests)\n"
    listed = _sorted(tables)[: rows_max or None]
    if listed:
        output += "\n" + columns([_LISTED, *map(_cells, listed)])
    return output + _rest(tables, listed)


def _about(tables: Tables, facts: Facts) -> str:
    line = f"{tables.requests:,} recorded requests"
    if facts.start_ms:
        line += f", {_time(facts.start_ms)} to {_time(facts.end_ms)}"
    if facts.one_of > 1:
        line += f", one of {facts.one_of:,} reviews"
    return f"{line}; compared with {facts.against}"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _counts(tables: Tables) -> list[tuple[str, str]]:
    changes = tables.changes
    return [
        (_WORDS[change], f"{changes[change]:,}") for change in (*CHANGES, UNCHANGED)
    ]


def _rows(
    values: Mapping[str, Counter[str]],
) -> list[tuple[str, tuple[str, ...]]]:
    """Return a row per value, sorted by the number of changes."""
    ordered = sorted(values.items(), key=lambda row: (-row[1].total(), row[0]))
    return [
        (name, tuple(f"{counter[change]:,}" for change in CHANGES))
        for name, counter in ordered
    ]


def _sorted(tables: Tables) -> list[Change]:
    return sorted(tables.listed, key=lambda change: CHANGES.index(change.change))


def _cells(change: Change) -> tuple[str, ...]:
    reason = "; ".join(change.reasons or change.needs)
    if len(reason) > _REASON_LENGTH_MAX:
        reason = f"{reason[:_REASON_LENGTH_MAX]} ..."
    path = f"{change.namespace}/{change.kind}/{change.name}"
    policies = ", ".join(change.policies)
    cells = (change.operation, path, change.user, policies, reason)
    return (_WORDS[change.change], *(shown(cell) or "-" for cell in cells))


def _rest(tables: Tables, listed: Sequence[Change]) -> str:
    changed = tables.requests - tables.changes[UNCHANGED]
    rest = changed - len(listed)
    return f"\n... and {rest:,} more requests (--limit)\n" if rest else ""


def as_json(tables: Tables, facts: Facts) -> str:
    """Return all results.

    Shape: ``{"requests": 10, "changes": {"denied": 1, ...}, "by": {"policy": {"p":
    {"denied": 1}}}, "undecidable": {"policy p: ConfigMap a/b": 1}, "list": [...]}``.
    """
    listed: list[Json] = []
    for change in _sorted(tables):
        fields = asdict(change)
        fields["timeMs"] = fields.pop("time_ms")
        listed.append({key: value for key, value in fields.items() if value != ()})
    document = {
        "requests": tables.requests,
        "startMs": facts.start_ms,
        "endMs": facts.end_ms,
        "oneOf": facts.one_of,
        "comparedWith": facts.against,
        "changes": {change: tables.changes[change] for change in (*CHANGES, UNCHANGED)},
        "by": tables.by,
        "undecidable": tables.needs,
        "list": listed,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def markdown(tables: Tables, facts: Facts, rows_max: int) -> str:
    """Return the table's content as markdown, for a comment on a pull request."""
    lines = [cell_text(_about(tables, facts)), ""]
    lines += _markdown(("Change", "Requests"), _counts(tables))
    for dimension, values in tables.by.items():
        if values:
            heads = (dimension.capitalize(), *(_WORDS[change] for change in CHANGES))
            lines += ["", *_markdown(heads, [(n, *row) for n, row in _rows(values)])]
    if tables.needs:
        lines += ["", "Not decidable from the recording:", ""]
        for need, number in tables.needs.most_common():
            lines.append(f"- {cell_text(need)} ({number:,} requests)")
    listed = _sorted(tables)[: rows_max or None]
    if listed:
        heads = tuple(name.capitalize() for name in _LISTED)
        lines += ["", *_markdown(heads, list(map(_cells, listed)))]
    return "\n".join(lines) + "\n" + _rest(tables, listed)


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(cell_text, row)) + " |" for row in rows]
    return lines
