"""Parse anchors in keys, and order the keys of a map.

Room: expr.pattern. Takes: key strings and PatternEntry records. Gives: (kind, key), and
the two phases of a MapPattern. Next: parse, labels.
Source: docs/behaviour/engine 5.5, 5.6.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.expr.pattern.nodes import (
    CONDITION,
    EQUALITY,
    EXISTENCE,
    GLOBAL,
    NEGATION,
    PLAIN,
    Leaf,
    MapPattern,
    Node,
    PatternEntry,
)

GO_SPACE: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""The characters that Go's strings.TrimSpace removes; Python's strip removes more."""

ADD_IF_NOT_PRESENT: Final = "+"
_MODIFIERS: Final = frozenset("+<=X^")
_FIRST_PHASE: Final = frozenset((CONDITION, EQUALITY, EXISTENCE, NEGATION))


def parse_anchor(key: str) -> tuple[str, str] | None:
    """Split a key into modifier and key; None if it is not an anchor.

    Shape: ``=(spec)`` becomes ("=", "spec"); ``(spec)`` becomes ("", "spec").
    """
    trimmed = key.strip(GO_SPACE)
    if not trimmed.endswith(")") or "\n" in trimmed:
        return None
    modifier = CONDITION
    if trimmed[0] in _MODIFIERS:
        modifier, trimmed = trimmed[0], trimmed[1:]
    if trimmed[0] != "(" or len(trimmed) < len("(k)"):
        return None
    return modifier, trimmed[1:-1]


def entry_of(key: str, value: Node) -> PatternEntry:
    """Return the entry of one key.

    KYVERNO: 5.5 - here ``+(k)`` is not an anchor but the literal key ``+(k)``.
    """
    anchor = parse_anchor(key)
    if anchor is None or anchor[0] == ADD_IF_NOT_PRESENT:
        return PatternEntry(PLAIN, key, key, value)
    return PatternEntry(anchor[0], anchor[1], key, value)


def ordered(
    entries: Iterable[PatternEntry], *, expands: bool = False, block: bool = False
) -> MapPattern:
    """Order entries in the two phases.

    KYVERNO: 5.6 - in the second phase, global anchors and keys with nested anchors are
    prepended one by one, so these keys end up in reverse order.
    """
    first: list[PatternEntry] = []
    front: list[PatternEntry] = []
    back: list[PatternEntry] = []
    anchored = False
    for entry in sorted(entries, key=lambda entry: entry.text):
        below = is_anchored(entry.value)
        anchored = anchored or below or entry.kind != PLAIN
        if entry.kind in _FIRST_PHASE:
            first.append(entry)
        elif entry.kind == GLOBAL or below:
            front.append(entry)
        else:
            back.append(entry)
    front.reverse()
    return MapPattern(tuple(first), (*front, *back), anchored, expands, block)


def is_anchored(node: Node) -> bool:
    """Return whether any key in the node is an anchor."""
    return not isinstance(node, Leaf) and node.anchored
