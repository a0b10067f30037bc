"""The style rules as a test: the card of each module names its room.

A failure means: a module does not state its purpose, or there is a new room without a
description.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "kyverno_mp"
MODULES = sorted(ROOT.rglob("*.py"))
BANNED = {"utils", "util", "common", "helpers", "helper", "misc", "core", "shared_code"}


def _names() -> list[object]:
    return [pytest.param(m, id=str(m.relative_to(ROOT))) for m in MODULES]


@pytest.mark.parametrize("module", _names())
def test_card_names_the_right_room(module: Path) -> None:
    relative = module.relative_to(ROOT)
    tree = ast.parse(module.read_text())
    if module.name == "__init__.py":
        if relative != Path("__init__.py"):
            assert not tree.body, "an __init__ below the root is empty"
        return
    card = ast.get_docstring(tree) or ""
    assert card, "every module opens with its card"
    if len(relative.parts) == 1:
        return
    found = re.search(r"Room: ([a-z_.]+)\.?", card)
    assert found is not None, "the card names the room"
    named = found[1].rstrip(".").replace("expr.", "expr/").split("/")[0].split(".")[0]
    assert relative.parts[0] == named


@pytest.mark.parametrize("module", _names())
def test_card_names_existing_modules(module: Path) -> None:
    """A failure means: a module was moved, and the cards that name it were not updated.

    A path begins in ``kyverno_mp/``; a name alone is a module of the same folder.
    """
    card = ast.get_docstring(ast.parse(module.read_text())) or ""
    following = re.search(r"Next:(.*?)(?:May touch|Source|\n\n|$)", card, re.DOTALL)
    for name in re.findall(
        r"[\w/]+\.py|\w+/\w[\w/]*", following[1] if following else ""
    ):
        starts = (ROOT, ROOT.parent) if "/" in name else (module.parent, ROOT)
        ends = (name, f"{name}.py")
        assert any((start / end).exists() for start in starts for end in ends), name


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
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), module


@pytest.mark.parametrize("module", _names())
def test_long_module_states_a_reason_in_its_card(module: Path) -> None:
    """Otherwise modules gradually grow too long to read."""
    text = module.read_text()
    card = ast.get_docstring(ast.parse(text)) or ""
    assert len(text.splitlines()) <= 400 or "Over 400 lines:" in card


_LISTS_OBJECTS = {
    "gc": {"get_objects", "get_referrers", "get_referents", "set_debug", "garbage"},
    "sys": {"_current_frames", "_current_exceptions"},
    "inspect": {"stack", "trace", "getouterframes", "getinnerframes"},
    "tracemalloc": {"start", "take_snapshot"},
}


@pytest.mark.parametrize("module", _names())
def test_no_module_refers_to_objects_of_other_threads(module: Path) -> None:
    """A failure means: an object that another thread is building gets a reference.

    CPython then fails in that thread, e.g. it cannot resize the tuple of a generator.
    """
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in _LISTS_OBJECTS.get(node.value.id, ()), node.lineno
        elif isinstance(node, ast.ImportFrom):
            banned = _LISTS_OBJECTS.get(node.module or "", set())
            assert not {one.name for one in node.names} & banned, node.lineno
        if isinstance(node, ast.Attribute):
            assert node.attr != "f_locals", node.lineno
