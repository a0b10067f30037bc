"""No result of a test depends on the machine's speed.

A failure means: a test sleeps, reads a clock or has a short limit, and CONTRIBUTING.md
does not say why; or it gives a reason for something that is gone. Use tests/waiting.py.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.style import nodes_of
from tests.waiting import HANG_S

ROOT: Final = Path(__file__).resolve().parents[2]
OWN: Final = {"tests/waiting.py", "tests/yardstick.py"}
CLOCKS: Final = {
    name + end
    for name in ("monotonic", "perf_counter", "time", "process_time", "thread_time")
    for end in ("", "_ns")
}
WAITS: Final = {
    "join",
    "wait",
    "result",
    "acquire",
    "communicate",
    "wait_for",
    "within",
}


def _named(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the module's constants, whose names hide a number."""
    named: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                named[name] = value
    return named


def _number(node: ast.expr, named: Mapping[str, ast.expr]) -> float:
    """Return the value of a literal, 0 for everything else: 0 does not wait."""
    if isinstance(node, ast.Name):
        node = named.get(node.id, node)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]  # the type is checked above
    return 0.0


def _limits(call: ast.Call, name: str) -> Iterator[ast.expr]:
    if name in WAITS:
        yield from call.args
    for keyword in call.keywords:
        if keyword.arg in ("timeout", "timeout_s"):
            yield keyword.value


def kind_of(node: ast.AST, named: Mapping[str, ast.expr]) -> str:
    """Return "sleep", "clock", "limit", or "" if the node does not depend on time."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        is_clock = node.value.id == "time" and node.attr in CLOCKS
        return "clock" if is_clock else ""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name == "sleep":
        # A sleep of zero only lets other tasks run.
        is_none = bool(node.args) and ast.unparse(node.args[0]) == "0"
        return "" if is_none else "sleep"
    if name == "time" and ast.unparse(function).endswith("loop.time"):
        return "clock"
    short = [each for each in _limits(node, name) if 0 < _number(each, named) < HANG_S]
    return "limit" if short else ""


def kinds_in(source: str) -> Counter[str]:
    tree = ast.parse(source)
    named = _named(tree)
    kinds = Counter(kind_of(node, named) for node in nodes_of(tree))
    del kinds[""]
    return kinds


def listed() -> dict[str, Counter[str]]:
    """Return the rows of CONTRIBUTING.md."""
    page = (ROOT / "docs/CONTRIBUTING.md").read_text()
    rows = re.findall(
        r"^\| `(tests/[^`]+)` \| ([^|]+) \| [^|]{10,} \|$", page, re.MULTILINE
    )
    return {
        path: Counter(
            {
                kind: int(count)
                for count, kind in re.findall(r"(\d+) (sleep|clock|limit)s?\b", words)
            }
        )
        for path, words in rows
    }


def test_dependences_on_time_are_listed_with_a_reason() -> None:
    rows = listed()
    expected: dict[str, Counter[str]] = {}
    for module in sorted((ROOT / "tests").rglob("*.py")):
        path = str(module.relative_to(ROOT))
        if path in OWN:
            continue
        kinds = kinds_in(module.read_text())
        if kinds:
            row = next((key for key in rows if _covers(key, path)), path)
            expected[row] = expected.get(row, Counter()) + kinds
    assert rows == expected


def _covers(row: str, path: str) -> bool:
    """A row names a module, or a folder with a slash at the end."""
    return path == row or (row.endswith("/") and path.startswith(row))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("time.sleep(0.1)", "sleep"),
        ("await asyncio.sleep(pause_s)", "sleep"),
        ("asyncio.sleep(0)", ""),
        ("began = time.monotonic()", "clock"),
        ("Client(now_ns=time.time_ns)", "clock"),
        ("loop.time()", "clock"),
        ("thread.join(2)", "limit"),
        ("thread.join(HANG_S)", ""),
        ("WAIT_S: Final = 30.0\nthread.join(WAIT_S)", "limit"),
        ("WAIT_S = 600\nthread.join(WAIT_S)", ""),
        ("queue.get(timeout=0.5)", "limit"),
        ("client.within(3.0)", "limit"),
        ("bell.wait(0)", ""),
        ("', '.join(names)", ""),
        ("pytest.mark.timeout(600)", ""),
    ],
)
def test_detection(source: str, kind: str) -> None:
    assert kinds_in(source) == Counter([kind] if kind else [])
