"""Find citations of ``docs/`` in a text, and report those that do not resolve.

``docs/behaviour/README.md`` says how a section is cited: the folder and its number, as
in "docs/behaviour/engine 6.8, 9.1-9.3"; a file outside the folders with its own name.
Next: test_citations.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("engine", "controllers", "cli", "cel", "images", "lessons")

_NUMBER = r"\d+[a-z]?(?:\.\d+)*"
_RANGE = rf"{_NUMBER}(?:-{_NUMBER})?"
# A remark in brackets may follow each number: "2, 3 (order), 9-13".
_ASIDE = r"(?:\s\([^()]*\))?"
_NUMBERS = rf"{_RANGE}(?:{_ASIDE}(?:,\s|\sand\s){_RANGE}(?![\w-]))*"
_FOLDERS = "|".join(FOLDERS)
_SECTION = re.compile(
    rf"(?:(?:docs/)?behaviour/|(?<=\())(?P<folder>{_FOLDERS})\s(?P<numbers>{_NUMBERS})"
)
_FILE = re.compile(rf"docs/(?P<file>[\w./-]+\.md)(?:\s(?P<numbers>{_NUMBERS}))?")
_FOLDER = re.compile(r"docs/behaviour/(?P<name>[\w-]+)\b(?![/.]\w)")
_PRIVATE = re.compile(
    r"(?<![\w/.-])(?:(?:\.\./)?(?:shared/)?spec/[\w.-]+\.md"
    r"|(?:(?:\.\./)?shared/)?(?:engine|controllers|cli|cel|images|anchors|design|pools"
    r"|style|v1\.19)\.md(?=\s+\d))"
)
_HEADING = re.compile(rf"^#+ (?P<number>{_NUMBER})\.? ")
_ITEM = re.compile(r"^(?P<number>\d+)\. ")


@cache
def numbers_of(path: Path) -> frozenset[str]:
    """Return the numbers of a file's headings and of the list items below them."""
    found: set[str] = set()
    section = ""
    for line in path.read_text().splitlines():
        if heading := _HEADING.match(line):
            section = heading["number"]
            found.add(section)
        elif (item := _ITEM.match(line)) and section:
            found.add(f"{section}.{item['number']}")
    return frozenset(found)


@cache
def sections_of(folder: str) -> frozenset[str]:
    """Return all numbers of a folder's files."""
    files = (ROOT / "docs/behaviour" / folder).glob("*.md")
    return frozenset().union(*map(numbers_of, files))


def as_prose(source: str) -> str:
    """Join the lines of a module, so that wrapped citations can be read."""
    return re.sub(r"\s*\n\s*(?:# ?)?", " ", source)


def faults(source: str) -> Iterator[str]:
    """Yield each citation whose target does not exist."""
    text = as_prose(source)
    for found in _PRIVATE.finditer(text):
        yield f"{found[0]}: no clone has this file"
    for found in _SECTION.finditer(text):
        known = sections_of(found["folder"])
        for number in _each(found["numbers"]):
            if number not in known:
                yield f"{found['folder']} {number}: no such section"
    for found in _FILE.finditer(text):
        yield from _faults_of_file(found["file"], found["numbers"] or "")
    for found in _FOLDER.finditer(text):
        if not (ROOT / "docs/behaviour" / found["name"]).is_dir():
            yield f"{found[0]}: no such folder"


def _faults_of_file(name: str, numbers: str) -> Iterator[str]:
    path = ROOT / "docs" / name
    if not path.is_file():
        yield f"docs/{name}: no such file"
        return
    for number in _each(numbers):
        if number not in numbers_of(path):
            yield f"docs/{name} {number}: no such section"


def _each(numbers: str) -> Iterator[str]:
    """Yield the numbers in "2, 3 (order), 9.1-9.3, 11.5-6"; both ends of a range."""
    bare = re.sub(r"\([^()]*\)", "", numbers)
    for part in re.findall(_RANGE, bare):
        first, _, last = part.partition("-")
        yield first
        if last and "." in first and "." not in last:
            last = f"{first.rpartition('.')[0]}.{last}"
        if last:
            yield last
