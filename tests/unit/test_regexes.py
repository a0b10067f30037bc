"""The program's own regular expressions are linear, in time and in memory.

A failure means: an object of some megabytes stops a worker for hours, or takes a
gigabyte. If parts of a pattern can match the same characters, Python tries each way to
split the text; a group that repeats (``(?:_?[0-9])*``) keeps a hundred bytes per
repetition for backtracking. Possessive quantifiers (``*+``, ``++``) and RE2 avoid both.
"""

import importlib
import pkgutil
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import kyverno_mp

REPEATED = 20_000
BYTES_PER_CHARACTER_MAX = 24
"""Enough for a few copies of the text; a repeated group takes over a hundred."""
GRACE = 256 * 1024
LONG = 100_000
"""Linear patterns take milliseconds, quadratic ones minutes."""
LONGEST_S = 60
PACKAGE = Path(kyverno_mp.__file__).parent
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_GROUPS = (ops.SUBPATTERN, ops.ATOMIC_GROUP, ops.ASSERT)


def _patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for module in pkgutil.walk_packages(kyverno_mp.__path__, "kyverno_mp."):
        if module.name.endswith("__main__"):
            continue
        found = vars(importlib.import_module(module.name))
        for name, value in list(found.items()):
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                yield f"{module.name}.{name}", value


PATTERNS = dict(_patterns())


def _count(tree: Any) -> int:
    """Return how many repetitions a pattern has."""
    total = 0
    for op, argument in tree:
        if op in _REPEATS:
            total += 1 + _count(argument[2])
        elif op in _GROUPS:
            total += _count(argument if op is ops.ATOMIC_GROUP else argument[-1])
        elif op is ops.BRANCH:
            total += sum(map(_count, argument[1]))
    return total


class _Writer:
    """A generator of matching texts in which one of the repetitions is long."""

    def __init__(self, long_at: int, times: int) -> None:
        self._at = -1
        self._long_at = long_at
        self._times = times

    def write(self, tree: Any) -> str:
        return "".join(self._one(*node) for node in tree)

    def _one(self, op: Any, argument: Any) -> str:
        if op in _REPEATS:
            least, most, inner = argument
            self._at += 1
            before, is_long = self._at, self._at == self._long_at
            text = self.write(inner)
            is_within = before < self._long_at <= self._at
            if is_long:
                return text * int(min(int(most), self._times))
            return text * max(int(least), int(is_within))
        if op in _GROUPS:
            if op is ops.ASSERT and argument[0] < 0:
                self.write(argument[1])
                return ""
            return self.write(argument if op is ops.ATOMIC_GROUP else argument[-1])
        if op is ops.BRANCH:
            return self._branch(argument[1])
        if op is ops.LITERAL:
            return chr(argument)
        if op is ops.NOT_LITERAL:
            return "b" if chr(argument) == "a" else "a"
        if op is ops.ANY:
            return "a"
        return _member(argument) if op is ops.IN else ""

    def _branch(self, branches: Any) -> str:
        """Return the branch with the long repetition, or the first one."""
        chosen = None
        for branch in branches:
            before = self._at
            text = self.write(branch)
            if before < self._long_at <= self._at or chosen is None:
                chosen = text
        return chosen or ""


def _member(members: Any) -> str:
    negated = members[0][0] is ops.NEGATE
    if not negated:
        op, argument = members[0]
        if op is ops.LITERAL:
            return chr(argument)
        if op is ops.RANGE:
            return chr(argument[0])
        return {ops.CATEGORY_DIGIT: "0", ops.CATEGORY_SPACE: " "}.get(argument, "a")
    taken = {chr(one[1]) for one in members if one[0] is ops.LITERAL}
    return next(one for one in "a0~ é" if one not in taken)


def _texts(pattern: re.Pattern[str], times: int = REPEATED) -> Iterator[str]:
    tree = parser.parse(pattern.pattern, pattern.flags)
    for at in range(_count(tree)):
        text = _Writer(at, times).write(tree)
        yield from (text, text + "\0", "\0" + text)


def _peak(pattern: re.Pattern[str], text: str) -> int:
    tracemalloc.start()
    try:
        pattern.match(text)
        pattern.fullmatch(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PATTERNS)
def test_memory_does_not_grow_with_repetitions(name: str) -> None:
    pattern = PATTERNS[name]
    for text in _texts(pattern):
        peak = _peak(pattern, text)
        assert peak < len(text) * BYTES_PER_CHARACTER_MAX + GRACE, (
            f"{peak >> 10} KiB for {len(text)} characters {text[:20]!r}"
        )


def _uses(name: str) -> set[str]:
    """Return the methods of a pattern that the program calls."""
    module, _, variable = name.rpartition(".")
    path = PACKAGE.parent / module.replace(".", "/")
    files = [path.with_suffix(".py"), path / "__init__.py"]
    if not variable.startswith("_"):
        files = list(PACKAGE.rglob("*.py"))
    text = "\n".join(file.read_text() for file in files if file.is_file())
    return set(re.findall(rf"\b{variable}\.([a-z]+)\b", text))


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("name", PATTERNS)
def test_time_is_linear(name: str) -> None:
    pattern, used = PATTERNS[name], _uses(name)
    for text in _texts(pattern, LONG):
        pattern.match(text)
        pattern.fullmatch(text)
        if used & {"search", "finditer", "findall", "sub", "subn", "split"}:
            pattern.search(text)


def test_nested_repetition_is_detected() -> None:
    pattern = re.compile(r"a?[0-9](?:_?[0-9])*b|c")
    assert any(_peak(pattern, one) > 10**6 for one in _texts(pattern))
