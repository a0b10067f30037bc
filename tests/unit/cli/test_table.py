"""Result tables are Kyverno's, byte for byte."""

from kyverno_mp.cli.output.table import Row, render

_ELEVEN = """\
│──────────│────────│──────│──────────│────────│────────│
│ ID (11)  │ POLICY │ RULE │ RESOURCE │ RESULT │ REASON │
│──────────│────────│──────│──────────│────────│────────│
"""
_TEN = """\
│────│────────│──────│──────────│────────│────────│
│ ID │ POLICY │ RULE │ RESOURCE │ RESULT │ REASON │
│────│────────│──────│──────────│────────│────────│
"""


def _head(count: int) -> str:
    rows = [Row(number, "p", "r", "d/Pod/c", "Pass") for number in range(1, count + 1)]
    return "".join(render(rows, detailed=False, color=False).splitlines(True)[:3])


def test_more_than_ten_rows_are_counted_in_the_header() -> None:
    """Red means: scripts that cut columns by position get other text."""
    assert _head(10) == _TEN
    assert _head(11) == _ELEVEN
