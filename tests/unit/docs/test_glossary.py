"""The glossary names existing modules.

A failure means: a module moved, but its entry was not updated.
"""

import re

from tests.unit.docs.citing import ROOT

PACKAGE = ROOT / "kyverno_mp"


def test_places_exist() -> None:
    rows = re.findall(
        r"^\| .* \| (.*) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
    )
    places = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(places) > 50
    for name in places:
        if name.startswith("tests/") or ("/" not in name and not name.endswith(".py")):
            assert (ROOT / name).exists(), name
        else:
            assert list(PACKAGE.glob(name.rstrip("/"))), name


def test_words_are_unique() -> None:
    """Two meanings of one word belong in one row."""
    text = (ROOT / "docs/glossary.md").read_text()
    words = [
        word.strip()
        for row in re.findall(r"^\| ([^|]*) \| .* \|$", text, re.MULTILINE)
        for word in row.split(",")
        if row != "word"
    ]
    assert sorted(words) == sorted(set(words))
