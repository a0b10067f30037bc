"""GitHub and the site render pages alike.

A failure means: the site shows a list as plain text. In the site's Markdown, a list or
a table needs an empty line before it, and nested items need four spaces; GitHub
requires less.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs.citing import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
_ITEM = re.compile(r"(?P<indent> *)(?P<mark>-|\d+\.) ")


def faults(text: str) -> Iterator[str]:
    """Yield each line that the two renderers interpret differently."""
    code, before = False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            code = not code
        elif not code and (why := _why(before, line)):
            yield f"{number}: {why}"
        before = line


def _why(before: str, line: str) -> str:
    item = _ITEM.match(line)
    if item and len(item["indent"]) % 4:
        return "indent nested items by four blanks"
    if not before or not line:
        return ""
    if line.startswith("|"):
        opens = before.startswith(("|", "<!--"))
        return "" if opens else "an empty line before a table"
    if before.startswith("|") and not line.startswith("<!--"):
        return "an empty line after a table"
    above = _ITEM.match(before)
    if not item or item["indent"] or before.startswith(" "):
        return ""
    if above and (above["mark"] == "-") == (item["mark"] == "-"):
        return ""
    return "an empty line before a list"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n  more\n- b\n    - c\n", []),
        ("1. a\n2. b\n\nText\n\n| a |\n|---|\n", []),
        ("```\nx\n- a\n| b |\n```\n", []),
        ("Text\n- a\n", ["2: an empty line before a list"]),
        ("1. a\n- b\n", ["2: an empty line before a list"]),
        ("- a\n  - b\n", ["2: indent nested items by four blanks"]),
        ("Text\n| a |\n", ["2: an empty line before a table"]),
        ("| a |\nText\n", ["2: an empty line after a table"]),
    ],
)
def test_differences_are_detected(text: str, said: list[str]) -> None:
    assert list(faults(text)) == said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_render_equally_everywhere(page: Path) -> None:
    assert list(faults(page.read_text())) == []
