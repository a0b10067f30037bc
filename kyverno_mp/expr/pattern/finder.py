"""Find the failure of a pattern without conditions, with path and text.

Room: expr.pattern. Takes: a node in which no anchor can skip. Gives: a Finder, equal to
explain.Walk on such nodes. Next: link.
Source: docs/behaviour/engine 5.5-5.8.

PERF: denials wait for this search. It costs half as much as the general walk, because
kinds, path suffixes and messages are determined at link time.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kyverno_mp.expr.pattern.explain import FAILED, NEGATED, Mismatch
from kyverno_mp.expr.pattern.leaf import leaf_check
from kyverno_mp.expr.pattern.nodes import (
    EQUALITY,
    NEGATION,
    PLAIN,
    Leaf,
    ListPattern,
    MapPattern,
    Node,
    PatternEntry,
)
from kyverno_mp.values.go.gotext import go_type, sprint
from kyverno_mp.values.jsonvalue import Json

Finder = Callable[[Json, str], "Mismatch | Misfit | None"]
"""``find(value, path)``: None if the value satisfies the node."""

_SIMPLE: Final = frozenset({EQUALITY, NEGATION, PLAIN})
_MAP: Final = "map[string]interface {}"


class Misfit(NamedTuple):
    """A scalar that does not match; most callers need only its path."""

    path: str
    value: Json
    expected: str

    def mismatch(self) -> Mismatch:
        """Return the mismatch with its text."""
        message = (
            f"resource value '{sprint(self.value)}' does not match '{self.expected}'"
            f" at path {self.path}"
        )
        return Mismatch(FAILED, self.path, message)


def is_simple(node: Node) -> bool:
    """Return whether no node below can skip, assert existence or expand."""
    if type(node) is MapPattern:
        return not (node.expands or node.block) and all(
            entry.kind in _SIMPLE and (entry.kind == NEGATION or is_simple(entry.value))
            for entry in (*node.first, *node.then)
        )
    return type(node) is not ListPattern or all(map(is_simple, node.items))


def link_finder(node: Node) -> Finder:
    """Link a node for which ``is_simple`` is true."""
    if type(node) is MapPattern:
        return _link_map(node)
    if type(node) is ListPattern:
        return _link_list(node)
    assert type(node) is Leaf
    return _link_leaf(node)


def _link_leaf(leaf: Leaf) -> Finder:
    check, expected = leaf_check(leaf), sprint(leaf.value)

    def find(value: Json, path: str) -> Mismatch | Misfit | None:
        if check(value):
            return None
        misfit = Misfit(path, value, expected)
        # A map or a list may be nested too deeply to be printed, which is a separate
        # error.
        is_deep = type(value) is dict or type(value) is list
        return misfit.mismatch() if is_deep else misfit

    return find


def _link_map(node: MapPattern) -> Finder:
    steps = tuple(
        (entry.key, f"{entry.key}/", entry.kind == PLAIN, _link_entry(entry))
        for entry in (*node.first, *node.then)
    )

    def find(value: Json, path: str) -> Mismatch | Misfit | None:
        if type(value) is not dict:
            message = (
                "pattern and resource have different structures. "
                f"Path: {path}. Expected {_MAP}, found {go_type(value)}"
            )
            return Mismatch(FAILED, path, message)
        for key, suffix, plain, inner in steps:
            if plain or key in value:
                mismatch = inner(value.get(key), path + suffix)
                if mismatch is not None:
                    return mismatch
        return None

    return find


def _link_entry(entry: PatternEntry) -> Finder:
    if entry.kind == NEGATION:
        return _forbid
    if entry.kind == PLAIN and type(entry.value) is Leaf and entry.value.value == "*":
        return _link_star(entry.key)
    return link_finder(entry.value)


def _forbid(_value: Json, path: str) -> Mismatch | None:
    message = f"negation anchor matched in resource: {path} is not allowed"
    return Mismatch(NEGATED, path, message)


def _link_star(key: str) -> Finder:
    cut = len(key) + 1

    def find(value: Json, path: str) -> Mismatch | None:
        if value is not None:
            return None
        # KYVERNO: 5.6 - the path is the parent's, and the text has two slashes.
        parent = path[:-cut]
        return Mismatch(FAILED, parent, f"{parent}/{key} not found")

    return find


def _link_list(node: ListPattern) -> Finder:
    # KYVERNO: 5.6 - the first element decides; unless it is a list, the others are
    # ignored.
    if not node.items:
        return _find_in(None, lambda _values, path: _empty(path))
    element_pattern = node.items[0]
    if type(element_pattern) is Leaf:
        return _find_in(None, _link_leaf(element_pattern))
    if type(element_pattern) is MapPattern:
        return _find_in(link_finder(element_pattern), None)
    return _link_positions(tuple(map(link_finder, node.items)))


def _empty(path: str) -> Mismatch:
    return Mismatch(FAILED, path, "pattern Array empty")


def _not_a_list(path: str) -> Mismatch:
    message = (
        f"validation rule failed at path {path}, "
        "resource does not satisfy the expected overlay pattern"
    )
    return Mismatch(FAILED, path, message)


def _find_in(finder: Finder | None, list_finder: Finder | None) -> Finder:
    """Apply one finder to every element, or to the list itself."""

    def find(values: Json, path: str) -> Mismatch | Misfit | None:
        if type(values) is not list:
            return _not_a_list(path)
        if list_finder is not None:
            return list_finder(values, path)
        assert finder is not None
        for index, value in enumerate(values):
            mismatch = finder(value, f"{path}{index}/")
            if mismatch is not None:
                return mismatch
        return None

    return find


def _link_positions(finders: tuple[Finder, ...]) -> Finder:
    def find(values: Json, path: str) -> Mismatch | Misfit | None:
        if type(values) is not list:
            return _not_a_list(path)
        if len(values) < len(finders):
            message = (
                "validate Array failed, array length mismatch, resource Array len is "
                f"{len(values)} and pattern Array len is {len(finders)}"
            )
            return Mismatch(FAILED, "", message)
        for index, inner in enumerate(finders):
            mismatch = inner(values[index], f"{path}{index}/")
            if mismatch is not None:
                return mismatch
        return None

    return find
