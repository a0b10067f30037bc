"""Draw result rows as upstream's table, which pipelines parse.

Room: cli. Takes: rows of cells. Gives: text. Next: apply, testing.
Source: docs/behaviour/cli 10 (table
rendering), 15.
"""

from collections.abc import Sequence
from unicodedata import category, combining, east_asian_width

import msgspec

from kyverno_mp.cli.output.screen import Safe, without_controls

_WRAP_AT = 300
"""Cells with more bytes wrap at word boundaries, as upstream's printer does."""
_COUNT_FROM = 10
"""With more rows than this, the first header shows the count."""

NOT_EVALUATED = "Not evaluated"
"""Reason for the row of a test that was not run."""

_STYLE = {
    "POLICY": "1;36",
    "RULE": "1;36",
    "RESOURCE": "1;36",
}
_RESULT_STYLE = {"Pass": "32", "Fail": "31", "Error": "31", "Skip": "36"}


class Row(msgspec.Struct):
    """One line of a result table; ``result`` is Pass, Fail, Warn, Error, Skip."""

    number: int
    policy: str
    rule: str
    resource: str
    result: str
    reason: str = ""
    message: str = ""
    is_failure: bool = False

    def cells(self, *, detailed: bool) -> list[str]:
        """Return the strings of the columns in order."""
        cells = [
            str(self.number),
            self.policy,
            self.rule,
            self.resource,
            self.result,
            self.reason,
        ]
        return [*cells, self.message] if detailed else cells


def headers(*, detailed: bool) -> list[str]:
    """Return the column names."""
    names = ["ID", "POLICY", "RULE", "RESOURCE", "RESULT", "REASON"]
    return [*names, "MESSAGE"] if detailed else names


def render(rows: Sequence[Row], *, detailed: bool, color: bool) -> Safe:
    """Return the table with borders, "" without rows."""
    if not rows:
        return Safe()
    names = headers(detailed=detailed)
    body = [
        [_wrapped(without_controls(cell)) for cell in row.cells(detailed=detailed)]
        for row in rows
    ]
    titles = list(names)
    if len(rows) > _COUNT_FROM:
        # KYVERNO: cli 8 - the printer's extra space after the count widens the column.
        titles[0] = f"ID ({len(rows)}) "
    widths = [
        max(len(titles[i]), *(_width(part) for line in body for part in line[i]))
        for i in range(len(names))
    ]
    border = "│" + "│".join("─" * (width + 2) for width in widths) + "│"
    lines = [border, _line(titles, widths, names, header=True, color=color), border]
    for cells in body:
        height = max(len(cell) for cell in cells)
        lines.extend(
            _line(
                [cell[i] if i < len(cell) else "" for cell in cells],
                widths,
                names,
                header=False,
                color=color,
            )
            for i in range(height)
        )
    lines.append(border)
    return Safe("\n".join(lines) + "\n")


def _wrapped(cell: str) -> list[str]:
    """Return the lines of a cell.

    KYVERNO: cli 8 - only a string without line breaks is wrapped, each space except the
    first of a line counts twice, and a long string that ends with a line break loses
    the character before it.
    """
    if len(cell.encode()) > _WRAP_AT and cell.endswith("\n"):
        # The printer cuts bytes; incomplete characters are not shown.
        cell = cell.encode()[:-2].decode(errors="ignore")
        if len(cell.encode()) <= _WRAP_AT:
            return cell.split("\n")
        return _wrapped(cell)
    if len(cell.encode()) <= _WRAP_AT or "\n" in cell:
        return cell.split("\n")
    words = cell.split()
    if not words:
        return [cell]
    lines = [words[0]]
    rest = _WRAP_AT - len(words[0].encode())
    for word in words[1:]:
        size = len(word.encode())
        if size + 1 <= rest:
            lines[-1] += f" {word}"
            rest -= size + 2
        else:
            lines.append(word)
            rest = _WRAP_AT - size
    return lines


def _width(cell: str) -> int:
    """Return the width on a terminal; East Asian characters take two columns."""
    if cell.isascii() and cell.isprintable():
        return len(cell)
    return sum(map(_columns, cell))


def _columns(character: str) -> int:
    if combining(character) or category(character) == "Cc":
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    names: Sequence[str],
    *,
    header: bool,
    color: bool,
) -> str:
    parts = []
    for cell, width, name in zip(cells, widths, names, strict=True):
        padded = f" {cell}{' ' * (width - _width(cell))} "
        if color:
            style = "32" if header else _style(name, cell)
            padded = f"\x1b[{style}m{padded}\x1b[0m" if style else padded
        parts.append(padded)
    return "│" + "│".join(parts) + "│"


def _style(name: str, cell: str) -> str:
    if name == "RESULT":
        return _RESULT_STYLE.get(cell, "33")
    if name == "REASON" and cell in ("Excluded", "Not found"):
        return "33"
    return _STYLE.get(name, "")
