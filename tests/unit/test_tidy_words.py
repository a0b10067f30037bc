"""Names say what a value is, more so with each change.

A failure means: more names than before could be those of any value (``one``, ``found``,
``text``), so a reader has to look for what they hold. ``python -m tests.style`` lists
the most frequent.
"""

import ast
from typing import Final

import pytest

from tests.style import circles, names_bound, sources, vague_share

PERCENT_MAX: Final = 1.9
"""Lower this number, never raise it."""
SLACK: Final = 0.3
"""How far the share may be below it, so that branches merge."""


def test_names_that_say_nothing_become_fewer() -> None:
    share, vague = vague_share(sources())
    assert share <= PERCENT_MAX, vague.most_common(5)
    assert share > PERCENT_MAX - SLACK, "there are fewer: lower PERCENT_MAX"


def test_no_module_imports_itself() -> None:
    """A circle makes the order of imports matter, and no part can be read alone."""
    assert circles(sources()) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = [one for one in x]", ["found", "one"]),
        ("def f(given, *, text): ...", ["given", "text"]),
        ("for key, other in x: ...", ["key", "other"]),
        ("try: ...\nexcept E as error: ...", ["error"]),
        ("if (place := x): print(place)", ["place"]),
        ("x.found = found", []),
    ],
)
def test_names_are_counted_where_they_are_bound(source: str, names: list[str]) -> None:
    assert sorted(names_bound(ast.parse(source))) == names


def test_circles_are_found() -> None:
    sources = {
        "p/a.py": "from p.b import x",
        "p/b.py": "from p.c import y",
        "p/c.py": "from p import a",
        "p/d.py": "from p.a import z",
    }
    assert circles(sources) == [["p.a", "p.b", "p.c"]]
