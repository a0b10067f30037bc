"""Documents cited by modules exist in a clone.

A failure means: a citation does not resolve. ``Source:`` in a module's card names the
basis of the module; a comment with a number names the description of a quirk. See
docs/behaviour/README.md.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.unit.docs.citing import ROOT, faults, sections_of

TEXTS = (
    *(
        path
        for room in ("kyverno_mp", "tests", "perf", "deploy")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.parent != Path(__file__).parent
    ),
    *sorted(ROOT.glob("*.md")),
    ROOT / "setup.cfg",
    *sorted((ROOT / "docs").rglob("*.md")),
)
MODULES = sorted((ROOT / "kyverno_mp").rglob("*.py"))
ROOMS = "|".join(path.name for path in (ROOT / "kyverno_mp").iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Source: docs/behaviour/engine 6.8, 6.9.", []),
        ("Source: docs/behaviour/cli 2, 3 (order), 9-13; Kyverno cmd/cli.", []),
        ("Source: docs/behaviour/controllers 11.5-6, 14.10.", []),
        ("# (engine\n    # 6.8).", []),
        ("(behaviour/cel 12c)", []),
        ("docs/architecture.md 3 (outbox), 1", []),
        ("docs/behaviour/lessons 4.2 rows 1, 5-9", []),
        ("Source: docs/behaviour/engine 99.1.", ["engine 99.1: no such section"]),
        ("docs/behaviour/engine 6.8,\n6.99.", ["engine 6.99: no such section"]),
        ("docs/behaviour/cli 9-99", ["cli 99: no such section"]),
        ("(cli 99)", ["cli 99: no such section"]),
        ("docs/architecture.md 99", ["docs/architecture.md 99: no such section"]),
        ("docs/nothing.md", ["docs/nothing.md: no such file"]),
        ("docs/behaviour/nothing 1", ["docs/behaviour/nothing: no such folder"]),
        ("Source: spec/engine.md 6.8.", ["spec/engine.md: no clone has this file"]),
        ("(cli.md 4)", ["cli.md: no clone has this file"]),
        ("design.md\n3", ["design.md: no clone has this file"]),
        ('"/spec/containers/0"', []),
    ],
)
def test_citations_are_parsed(text: str, said: list[str]) -> None:
    """The test below finds a citation in every notation and across wrapped lines."""
    assert list(faults(text)) == said


def test_sections_are_found() -> None:
    assert {"0.1", "6.8", "10.7", "11.40"} <= sections_of("engine")
    assert {"7b", "22.1"} <= sections_of("cli")


def test_cited_sections_exist() -> None:
    assert [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in TEXTS
        for fault in faults(path.read_text())
    ] == []


def test_cards_name_existing_modules() -> None:
    """``Source: leader/cluster_data.py`` names a module of this program."""
    missing = []
    for path in MODULES:
        card = ast.get_docstring(ast.parse(path.read_text())) or ""
        source = card.partition("Source:")[2].partition("\n\n")[0]
        missing += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in re.findall(rf"\b(?:{ROOMS})/[\w/]+\.py\b", source)
            if not (ROOT / "kyverno_mp" / name).is_file()
        ]
    assert missing == []
