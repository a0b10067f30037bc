"""Links in the documentation resolve.

A failure means: a reader gets a 404. `zensical build --strict` checks the links of the
rendered site again, but neither the README nor the completeness of the navigation.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.docs.citing import ROOT

PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^()\s]+)\)")
_FOREIGN = re.compile(r"[a-z]+:")


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return words.replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for found in _LINK.finditer(_CODE.sub("``", text)):
        target = found["target"]
        if _FOREIGN.match(target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert dead_links(page, page.read_text()) == []


def test_dead_links_are_detected() -> None:
    text = (
        "[a](setup.cfg) [b](nowhere.md) [c](README.md#licence) [d](README.md#nothing)"
        " [e](https://kyverno.io) [f](#nothing) `[g](nowhere.md)`"
    )
    page = ROOT / "README.md"
    assert dead_links(page, text) == ["nowhere.md", "README.md#nothing", "#nothing"]


def test_every_page_is_linked() -> None:
    """Every page in docs/ has a link to it."""
    reached: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in reached or not page.is_file() or page.suffix != ".md":
            continue
        reached.add(page)
        for found in _LINK.finditer(_CODE.sub("``", page.read_text())):
            name = found["target"].partition("#")[0]
            if name and not _FOREIGN.match(name):
                queue.append((page.parent / name).resolve())
    assert set((ROOT / "docs").rglob("*.md")) <= reached


@cache
def _site() -> dict[str, Any]:
    """Return mkdocs.yml without its tags of Python, which PyYAML rejects."""
    text = (ROOT / "mkdocs.yml").read_text()
    site: dict[str, Any] = yaml.safe_load(re.sub(r"!!python/\S+", "", text))
    return site


def site_pages() -> list[str]:
    """Return the pages that the site has; the others are for contributors."""
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    excluded = [path.removeprefix("/") for path in _site()["exclude_docs"].split()]
    for path in excluded:
        assert (docs / path).exists(), path
    return sorted(
        page
        for page in pages
        if page not in excluded and f"{page.partition('/')[0]}/" not in excluded
    )


def test_site_navigation_lists_every_page_once() -> None:
    assert sorted(_leaves(_site()["nav"])) == site_pages()


@pytest.mark.parametrize("page", site_pages())
def test_pages_link_only_within_the_site(page: str) -> None:
    """The site has neither files outside docs/ nor pages for contributors."""
    pages = site_pages()
    path = ROOT / "docs" / page
    for link in _LINK.finditer(_CODE.sub("``", path.read_text())):
        name = link["target"].partition("#")[0]
        if name.endswith(".md"):
            target = (path.parent / name).resolve()
            assert str(target.relative_to(ROOT / "docs")) in pages, name


def _leaves(entry: object) -> Iterator[str]:
    """Yield the pages of a navigation, which nests strings, lists and maps."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for child in entry.values():
            yield from _leaves(child)
    elif isinstance(entry, list):
        for child in entry:
            yield from _leaves(child)
