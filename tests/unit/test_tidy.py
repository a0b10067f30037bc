"""The style rules as a test: the card of each module names its room.

A failure means: a module does not state its purpose, or there is a new room without a
description.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style import nodes_of, syntax_trees

ROOT = Path(__file__).resolve().parents[2] / "kyverno_mp"
MODULES = sorted(ROOT.rglob("*.py"))
BANNED = {"utils", "util", "common", "helpers", "helper", "misc", "core", "shared_code"}


def _tree(module: Path) -> ast.Module:
    return syntax_trees()[module]


def _card(module: Path) -> str:
    return ast.get_docstring(_tree(module)) or ""


def test_cards_name_the_right_room() -> None:
    assert [fault for module in MODULES for fault in _faults_of_card(module)] == []


def _faults_of_card(module: Path) -> Iterator[str]:
    relative = module.relative_to(ROOT)
    if module.name == "__init__.py":
        if relative != Path("__init__.py") and _tree(module).body:
            yield f"{relative}: an __init__ below the root is empty"
        return
    card = _card(module)
    if not card:
        yield f"{relative}: every module opens with its card"
    elif len(relative.parts) > 1:
        room = re.search(r"Room: ([a-z_]+)", card)
        if room is None or room[1] != relative.parts[0]:
            yield f"{relative}: the card names the room"


def test_cards_name_existing_modules() -> None:
    """A failure means: a module was moved, and the cards that name it were not updated.

    A path begins in ``kyverno_mp/``; a name alone is a module of the same folder.
    """
    assert [name for module in MODULES for name in _missing_modules(module)] == []


def _missing_modules(module: Path) -> Iterator[str]:
    following = re.search(
        r"Next:(.*?)(?:May touch|Source|\n\n|$)", _card(module), re.DOTALL
    )
    for name in re.findall(
        r"[\w/]+\.py|\w+/\w[\w/]*", following[1] if following else ""
    ):
        starts = (ROOT, ROOT.parent) if "/" in name else (module.parent, ROOT)
        ends = (name, f"{name}.py")
        if not any((start / end).exists() for start in starts for end in ends):
            yield f"{module.relative_to(ROOT)}: {name}"


def test_no_room_for_leftovers() -> None:
    names = {
        part for m in MODULES for part in m.relative_to(ROOT).with_suffix("").parts
    }
    assert not names & BANNED


@pytest.mark.parametrize("folder", ["kyverno_mp", "tests", "docs", "deploy", "perf"])
def test_no_merge_conflict_marker_remains(folder: str) -> None:
    """Nothing else would detect it in a docstring or a page."""
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    texts = (".py", ".md", ".yaml", ".json", ".lua")
    files = [one for one in (ROOT.parent / folder).rglob("*") if one.suffix in texts]
    assert files
    assert [one for one in files if marker.search(one.read_text())] == []


def test_record_decoders_are_built_at_import() -> None:
    """The process crashes if two threads decode a type for the first time.

    This happens with msgspec 0.22. The command line starts no threads before it has
    read its input.
    """
    found = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if module.relative_to(ROOT).parts[0] != "cli"
        and re.search(r"json\.decode\([^)]*type=_[A-Z]", module.read_text())
    ]
    assert found == []


def test_no_module_evaluates_text() -> None:
    """Policies are untrusted input: eval, exec, pickle and marshal are not allowed."""
    for module in MODULES:
        for node in nodes_of(_tree(module)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), module


def test_long_modules_state_a_reason_in_their_card() -> None:
    """Otherwise modules gradually grow too long to read."""
    assert [
        str(module.relative_to(ROOT))
        for module in MODULES
        if len(module.read_text().splitlines()) > 400
        and "Over 400 lines:" not in _card(module)
    ] == []


_LISTS_OBJECTS = {
    "gc": {"get_objects", "get_referrers", "get_referents", "set_debug", "garbage"},
    "sys": {"_current_frames", "_current_exceptions"},
    "inspect": {"stack", "trace", "getouterframes", "getinnerframes"},
    "tracemalloc": {"start", "take_snapshot"},
}


def test_no_module_refers_to_objects_of_other_threads() -> None:
    """A failure means: an object that another thread is building gets a reference.

    CPython then fails in that thread, e.g. it cannot resize the tuple of a generator.
    """
    assert [
        f"{module.relative_to(ROOT)}:{node.lineno}"
        for module in MODULES
        for node in nodes_of(_tree(module))
        if isinstance(node, ast.Attribute | ast.ImportFrom) and _lists_objects(node)
    ] == []


def _lists_objects(node: ast.Attribute | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        banned = _LISTS_OBJECTS.get(node.module or "", set())
        return any(name.name in banned for name in node.names)
    of = node.value.id if isinstance(node.value, ast.Name) else ""
    return node.attr == "f_locals" or node.attr in _LISTS_OBJECTS.get(of, ())
