"""The changelog lists the versions in order, newest first, and groups the changes.

A failure means: a release has no heading, or a change has no group, or two copies.
"""

import re
from collections import Counter
from typing import Final

from kyverno_mp import __version__
from tests.unit.docs.citing import ROOT

TEXT: Final = (ROOT / "CHANGELOG.md").read_text()
GROUPS: Final = ["Security", "Added", "Changed", "Fixed"]


def _unreleased() -> str:
    return TEXT.partition("\n## Unreleased\n")[2].partition("\n## ")[0]


def test_newest_version_is_the_current_one() -> None:
    headings = re.findall(r"^## (\S+)", TEXT, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == __version__
    versions = [tuple(map(int, one.split("."))) for one in headings[1:]]
    assert versions == sorted(versions, reverse=True)


def test_each_change_is_in_a_group() -> None:
    """After a release, the section can be empty."""
    introduction, *groups = re.split(r"^### ", _unreleased(), flags=re.MULTILINE)
    assert "\n- " not in introduction
    names = [one.partition("\n")[0] for one in groups]
    assert names == [one for one in GROUPS if one in names]


def test_changes_are_listed_once() -> None:
    """A merge of two branches that both changed the section can repeat it."""
    changes = re.findall(r"^- .*$", _unreleased(), flags=re.MULTILINE)
    assert [one for one, count in Counter(changes).items() if count > 1] == []
