"""The changelog lists the versions in order, newest first.

A failure means: a release has no heading.
"""

import re

from kyverno_mp import __version__
from tests.unit.docs.citing import ROOT


def test_newest_version_is_the_current_one() -> None:
    headings = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE
    )
    assert headings[0] == "Unreleased"
    assert headings[1] == __version__
    versions = [tuple(map(int, one.split("."))) for one in headings[1:]]
    assert versions == sorted(versions, reverse=True)
