"""Result tables equal Kyverno's, byte for byte."""

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
    """Otherwise, scripts that cut columns by position would read other text."""
    assert _head(10) == _TEN
    assert _head(11) == _ELEVEN


def _lines(message: str) -> list[str]:
    row = Row(1, "p", "r", "d/Pod/c", "Fail", message=message)
    lines = render([row], detailed=True, color=False).splitlines()[3:-1]
    return [line.split("│")[7].strip() for line in lines]


def test_long_cell_is_wrapped_by_bytes() -> None:
    """Otherwise, a long message would be wrapped differently than in Kyverno."""
    found = _lines("w\u00f6rd  " * 60)
    assert found == [" ".join(["w\u00f6rd"] * count) for count in (43, 17)]
    assert _lines(f"{'word ' * 80}\nend") == [("word " * 80).strip(), "end"]


def test_wide_characters_take_two_columns() -> None:
    row = Row(1, "p", "r", "d/Pod/c", "Fail", message="\u65e5\u672c")
    lines = render([row], detailed=True, color=False).splitlines()
    assert lines[3].endswith("\u65e5\u672c    │")
    assert lines[1].endswith(" MESSAGE │")
