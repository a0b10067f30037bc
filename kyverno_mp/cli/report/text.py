"""Print the results of reports as tables for terminals, or as markdown.

Room: cli. Takes: Entries, sorted by urgency, and how many to list. Gives: one text.
Next: entries.

SAFETY: names and messages come from objects. Control characters could rewrite the
reader's terminal, and markup could become part of a page.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.cli.output.screen import Safe, without_controls
from kyverno_mp.dashboard.entries import RESULTS, Counts, Entry, Group, groups, total

_MESSAGE_LENGTH_MAX: Final = 200
_STYLE: Final = {"fail": "31", "error": "31", "warn": "33", "pass": "32", "skip": "36"}
_LISTED: Final = ("RESULT", "SEVERITY", "POLICY", "RULE", "OBJECT", "MESSAGE")
_MARKUP: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "\n": "<br>",
        "\r": " ",
        # Characters of markdown for table cells, code, links and emphasis.
        **{character: f"\\{character}" for character in "\\|`[]*_~!@#"},
    }
)


def summary(counts: Counts) -> str:
    """Return ``fail: 2, error: 0, warn: 0, pass: 3, skip: 1``."""
    return ", ".join(f"{name}: {counts.of[name]:,}" for name in RESULTS)


def table(
    entries: Sequence[Entry], dimension: str, rows_max: int, *, color: bool
) -> Safe:
    """Return the groups, the listed results, and the total."""
    if not entries:
        return Safe(f"{summary(total(entries))}\n")
    named = [(dimension.upper(), *(name.upper() for name in RESULTS), "TOTAL")]
    named += [_group_row(group) for group in groups(entries, dimension)]
    output = columns(named, numbers_from=1)
    listed = entries[:rows_max] if rows_max else entries
    paint = _painted if color else _plain
    output += "\n" + columns([_LISTED, *map(_cells, listed)], paint=paint)
    output += "\n" + _rest(len(entries) - len(listed)) + _end(entries)
    return Safe(output)


def _end(entries: Sequence[Entry]) -> str:
    return f"{summary(total(entries))}\n"


def _rest(count: int) -> str:
    return f"... and {count:,} more results (--limit 0: all)\n" if count else ""


def _group_row(group: Group) -> tuple[str, ...]:
    numbers = (f"{group.counts.of[name]:,}" for name in RESULTS)
    return (shown(group.name), *numbers, f"{group.counts.total:,}")


def _cells(entry: Entry) -> tuple[str, ...]:
    message = entry.message
    if len(message) > _MESSAGE_LENGTH_MAX:
        message = message[:_MESSAGE_LENGTH_MAX] + " ..."
    values = (entry.severity, entry.policy, entry.rule, entry.path, message)
    return (entry.result, *(shown(value) or "-" for value in values))


def shown(value: str) -> str:
    """Return the text on one line, without control characters."""
    return value if value.isprintable() else without_controls(" ".join(value.split()))


def _plain(_column: str, padded: str) -> str:
    return padded


def _painted(column: str, padded: str) -> str:
    style = _STYLE.get(padded.strip()) if column == "RESULT" else None
    return f"\x1b[{style}m{padded}\x1b[0m" if style else padded


def columns(
    rows: Sequence[Sequence[str]],
    *,
    numbers_from: int | None = None,
    paint: Callable[[str, str], str] = _plain,
) -> str:
    """Return aligned columns; the first row contains the headings.

    ``numbers_from``: the first column that is aligned to the right.
    """
    heads = rows[0]
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    lines = []
    for row in rows:
        parts = []
        for at, cell in enumerate(row):
            right = numbers_from is not None and at >= numbers_from
            padded = cell.rjust(widths[at]) if right else cell.ljust(widths[at])
            parts.append(paint(heads[at], padded))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines) + "\n"


def markdown(entries: Sequence[Entry], dimension: str, rows_max: int) -> str:
    """Return the table's content as markdown, for comments on pull requests."""
    heads = [dimension.capitalize(), *(name.capitalize() for name in RESULTS), "Total"]
    lines = [
        *_markdown_heads(heads),
        *map(_line, map(_raw_row, groups(entries, dimension))),
    ]
    listed = entries[:rows_max] if rows_max else entries
    if listed:
        names = ("Result", "Severity", "Policy", "Rule", "Object", "Message")
        lines += ["", *_markdown_heads(names)]
        for entry in listed:
            values = (
                entry.result,
                entry.severity,
                entry.policy,
                entry.rule,
                entry.path,
            )
            lines.append(_line((*values, entry.message)))
    rest = _rest(len(entries) - len(listed))
    return "\n".join(lines) + "\n\n" + (f"{rest}\n" if rest else "") + _end(entries)


def _raw_row(group: Group) -> tuple[str, ...]:
    return (group.name, *_group_row(group)[1:])


def _markdown_heads(names: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(cell_text, cells)) + " |"


def cell_text(value: str) -> str:
    """Escape a string for one markdown cell."""
    plain = "".join(
        character if character.isprintable() or character == "\n" else " "
        for character in value
    )
    return plain.translate(_MARKUP)
