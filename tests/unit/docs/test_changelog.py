"""The news are short, and the list of changes is in groups; both have the versions.

A failure means: a release has no heading, or a change has no group, or two copies; or
the news have grown into a second list.
"""

import re
from collections import Counter
from typing import Final

import pytest

from kyverno_mp import __version__
from tests.unit.docs.citing import ROOT

NEWS: Final = (ROOT / "CHANGELOG.md").read_text()
CHANGES: Final = (ROOT / "docs/changes.md").read_text()
GROUPS: Final = ["Security", "Added", "Changed", "Fixed"]
ENTRY_MAX: Final = 240
"""Characters of an entry of the news: a line, and a link."""


def _unreleased(text: str) -> str:
    return text.partition("\n## Unreleased\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("text", [NEWS, CHANGES], ids=["news", "changes"])
def test_newest_version_is_the_current_one(text: str) -> None:
    headings = re.findall(r"^## (\S+)", text, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == __version__
    versions = [tuple(map(int, one.split("."))) for one in headings[1:]]
    assert versions == sorted(versions, reverse=True)


def test_each_change_is_in_a_group() -> None:
    """After a release, the section can be empty."""
    introduction, *groups = re.split(r"^### ", _unreleased(CHANGES), flags=re.MULTILINE)
    assert "\n- " not in introduction
    names = [one.partition("\n")[0] for one in groups]
    assert names == [one for one in GROUPS if one in names]


@pytest.mark.parametrize("text", [NEWS, CHANGES], ids=["news", "changes"])
def test_changes_are_listed_once(text: str) -> None:
    """A merge of two branches that both changed the section can repeat it."""
    changes = re.findall(r"^- .*$", _unreleased(text), flags=re.MULTILINE)
    assert [one for one, count in Counter(changes).items() if count > 1] == []


def test_news_are_one_line_each() -> None:
    """Details, codes and settings stand in the list of changes."""
    lines = NEWS.splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    assert [line for line in lines if line.startswith("  ")] == []
    assert [entry for entry in entries if len(entry) > ENTRY_MAX] == []
