"""Define the records of a parsed pattern, which a snapshot contains.

Room: expr.pattern. Takes: written by parse.parse_pattern. Gives: Pattern, embedded in
ir.rules.PatternIR. Next: link.link_pattern.
Source: docs/behaviour/engine 5.
"""

from typing import Final, TypeAlias

import msgspec

PLAIN: Final = "plain"
CONDITION: Final = ""
EQUALITY: Final = "="
EXISTENCE: Final = "^"
NEGATION: Final = "X"
GLOBAL: Final = "<"


class Atom(msgspec.Struct, frozen=True, array_like=True, tag="atom"):
    """One comparison of a text pattern.

    ``operator``: "" (equal), "!", ">", "<", ">=" or "<="; ``duration``: nanoseconds if
    ``text`` is a Go duration; ``quantity``: whether ``text`` is a quantity.
    """

    operator: str
    text: str
    duration: int | None = None
    quantity: bool = False


class Range(msgspec.Struct, frozen=True, array_like=True, tag="range"):
    """``a-b`` (both atoms must match) or, if ``outside``, ``a!-b`` (one must match)."""

    low: Atom
    high: Atom
    outside: bool = False


Term: TypeAlias = Atom | Range


class Leaf(msgspec.Struct, frozen=True, array_like=True, tag="leaf"):
    """A scalar; a string is split into alternatives (``|``) of terms (``&``)."""

    value: bool | int | float | str | None
    alternatives: tuple[tuple[Term, ...], ...] = ()


class ListPattern(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """A list; ``anchored``: whether any key below it is an anchor."""

    items: tuple["Node", ...]
    anchored: bool = False


class PatternEntry(msgspec.Struct, frozen=True, array_like=True):
    """One key of a map: its kind, the key to look up, and the original text."""

    kind: str
    key: str
    text: str
    value: "Node"


class MapPattern(msgspec.Struct, frozen=True, array_like=True, tag="map"):
    """A map, with its keys in Kyverno's evaluation order.

    ``first``: condition, equality, existence and negation anchors; ``then``: the rest.
    ``expands``: the map has a metadata block whose labels or annotations depend on the
    resource (wildcard keys, non-text values). ``block``: this map itself is such a
    block of labels or annotations.
    """

    first: tuple[PatternEntry, ...] = ()
    then: tuple[PatternEntry, ...] = ()
    anchored: bool = False
    expands: bool = False
    block: bool = False


Node: TypeAlias = Leaf | ListPattern | MapPattern


class Pattern(msgspec.Struct, frozen=True, array_like=True):
    """One ``pattern``, or one entry of ``anyPattern``."""

    root: Node
