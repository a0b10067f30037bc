"""Hand-written tables are complete and contain nothing else.

A failure means: a dependency has no reason, or a room is missing on the map.
"""

import re
from configparser import ConfigParser

import pytest

from tests.unit.docs.citing import ROOT


def _setup() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def _names(requirements: str) -> set[str]:
    lines = filter(None, map(str.strip, requirements.splitlines()))
    return {re.split(r"[<>=~!]", line)[0] for line in lines}


def _first_cells(text: str) -> set[str]:
    cells = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    words = {word.strip(" `") for cell in cells for word in cell.split(",")}
    return words - {"library", "room"}


@pytest.mark.parametrize(
    ("heading", "section", "key"),
    [
        ("The program", "options", "install_requires"),
        ("Envoy's requests", "options.extras_require", "authz"),
        ("Clusters that evaluate", "options.extras_require", "fleet"),
        ("Traces and pushed metrics", "options.extras_require", "otel"),
        ("Tests", "options.extras_require", "test"),
        ("Releases", "options.extras_require", "release"),
        ("Documentation", "options.extras_require", "docs"),
    ],
)
def test_every_dependency_has_a_reason(heading: str, section: str, key: str) -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    table = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    assert _first_cells(table) == _names(_setup()[section][key])


def test_every_room_is_on_the_map() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("\n## 4. ")[2].partition("\n## ")[0]
    package = ROOT / "kyverno_mp"
    rooms = {path.stem for path in package.iterdir() if path.name[:2] != "__"}
    assert _first_cells(table) == rooms - {"py"}


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_files_named_in_tables_exist(page: str) -> None:
    """Otherwise, readers would be sent to a module that has moved."""
    rows = re.findall(r"^\|.*\|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([a-z_/]+\.py)`", row)}
    assert names, "no table names a file"
    missing = {
        name
        for name in names
        if not any((ROOT / root / name).is_file() for root in ("kyverno_mp", "."))
    }
    assert not missing
