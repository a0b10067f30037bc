"""Find the line of a field in a YAML or JSON file.

Room: cli. Takes: the text and a path such as ``spec.rules[0].match``. Gives: line and
column, and repeated keys. Next: lint.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import yaml

from kyverno_mp.policy.reading.load import without_strays

_STEP: Final = re.compile(r"[^.\[\]]+|\[\d+\]")  # a constant pattern
_MERGE: Final = "tag:yaml.org,2002:merge"
_Node = yaml.nodes.Node


class Positions:
    """Positions of fields in one file; empty if the text is not YAML."""

    def __init__(self, data: bytes) -> None:
        try:
            read = without_strays(data)
            self._roots = list(yaml.compose_all(read, Loader=yaml.CSafeLoader))
        except (yaml.YAMLError, UnicodeError, ValueError, RecursionError):
            self._roots = []

    def duplicate_keys(self, index: int) -> Iterator[tuple[str, int, int]]:
        """Yield key, line and column of each key that repeats an earlier one."""
        root = self._roots[index] if index < len(self._roots) else None
        pending: list[_Node] = [root] if root is not None else []
        visited: set[int] = set()
        while pending:
            node = pending.pop()
            # An alias is the same node as its anchor.
            if id(node) in visited or not isinstance(node, yaml.CollectionNode):
                continue
            visited.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                pending.extend(node.value)
                continue
            keys: set[str] = set()
            for key, value in node.value:
                pending.append(value)
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in keys:
                        mark = key.start_mark
                        yield key.value, mark.line + 1, mark.column + 1
                    keys.add(key.value)

    def repeated_keys(self, index: int) -> Iterator[tuple[str, int]]:
        """Yield each key that a strict decoder rejects, as Go prints it, and its line.

        GO: keys merged by ``<<`` count as set, before or after the mapping's own keys.
        A mapping is checked again for each alias. 1 and "1" are two keys. The line is
        the value's line (go-yaml v2, decode.go). The file must be one that ``load``
        accepts, because ``load`` limits depth and aliases.
        """
        if index < len(self._roots) and self._roots[index] is not None:
            yield from _repeated(self._roots[index])

    def locate(self, index: int, path: str, *, item: int = -1) -> tuple[int, int]:
        """Return line and column, from 1, of the deepest part of the path that exists.

        ``index``: the document; ``item``: the entry, if the document is a List. Returns
        (0, 0) if the text is not YAML.
        """
        if index >= len(self._roots) or self._roots[index] is None:
            return 0, 0
        steps = _STEP.findall(path)
        if item >= 0:
            steps = ["items", f"[{item}]", *steps]
        node: _Node = self._roots[index]
        mark = node.start_mark
        at = 0
        while at < len(steps):
            child = _child(node, steps, at)
            if child is None:
                break
            node, mark, at = child
        return mark.line + 1, mark.column + 1


def _repeated(node: _Node) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _repeated(each)
    elif isinstance(node, yaml.MappingNode):
        yield from _repeated_in(node, set())


def _repeated_in(node: _Node, keys: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the keys that are repeated in a mapping and the mappings that it merges.

    ``keys``: keys that are already set, as Go prints them; the mapping's keys are
    added.
    """
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.tag == _MERGE:
            # GO: the first of several merged mappings wins, so it is visited last.
            is_list = isinstance(value, yaml.SequenceNode)
            for merged in reversed(value.value) if is_list else [value]:
                yield from _repeated_in(merged, keys)
            continue
        yield from _repeated(value)
        if not isinstance(key, yaml.ScalarNode):
            continue
        printed = _shown(key)
        if printed in keys:
            # An alias has its anchor's position.
            yield printed, max(key.start_mark.line, value.start_mark.line) + 1
        keys.add(printed)


def _shown(key: yaml.ScalarNode) -> str:
    """Return a key as Go prints it, which distinguishes 1 from "1"."""
    try:
        value = yaml.constructor.SafeConstructor().construct_object(key)
    except (yaml.YAMLError, ValueError):
        value = key.value
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else json.dumps(key.value)


def _child(
    node: _Node, steps: list[str], at: int
) -> tuple[_Node, yaml.Mark, int] | None:
    """Return the child at the next step; of keys with dots, the longest one wins."""
    step = steps[at]
    if isinstance(node, yaml.SequenceNode) and step.startswith("["):
        position = int(step[1:-1])
        if position < len(node.value):
            child = node.value[position]
            return child, child.start_mark, at + 1
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    for end in range(len(steps), at, -1):
        name = ".".join(steps[at:end])
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == name:
                return value, key.start_mark, end
    return None
