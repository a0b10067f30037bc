"""Log lines: one JSON object, or text that a terminal can show."""

import json
import logging
import sys

import pytest

from kyverno_mp.telemetry.log import JsonLines, TextLines, fields, set_up


def record(message: str, **values: object) -> logging.LogRecord:
    found = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": message, **fields(**values)}
    )
    found.created = 0.25
    return found


def test_log_line_is_one_json_object() -> None:
    line = JsonLines("leader").format(record("a\nb", count=1))
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["message"], entry["role"], entry["count"]) == ("a\nb", "leader", 1)


def test_text_line_has_time_level_role_message_and_fields() -> None:
    line = TextLines("leader").format(
        record("published", count=1, reason="no kind", empty="", name="a")
    )
    assert line.split() == [
        *("1970-01-01T00:00:00.250Z", "info", "leader", "published", "count=1"),
        *('reason="no', 'kind"', 'empty=""', "name=a"),
    ]


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb 2026 error", "\r", "\u2028"])
def test_terminal_control_characters_are_escaped(hostile: str) -> None:
    """Names come from requests: they must not clear the screen or forge a line."""
    for line in (
        TextLines("leader").format(record("m", name=hostile)),
        TextLines("leader").format(record(hostile)),
        TextLines("leader").format(record("m", names=[hostile])),
    ):
        assert line.isprintable()


def test_traceback_follows_a_text_line_indented() -> None:
    found = record("failed")
    try:
        int("\x1b[2J")
    except ValueError:
        found.exc_info = sys.exc_info()
    first, *rest = TextLines("leader").format(found).split("\n")
    assert first.endswith("failed")
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


@pytest.mark.parametrize(("form", "kind"), [("text", TextLines), ("json", JsonLines)])
def test_the_format_is_chosen_at_start(form: str, kind: type) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        set_up("leader", "warning", form)
        assert isinstance(root.handlers[0].formatter, kind)
    finally:
        root.handlers[:], root.level = before
