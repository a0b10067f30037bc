"""Define the records of a parsed CEL expression.

Room: expr. Takes: written by expr/cel/syntax/parse.py. Gives: Node, and Expression,
which the IR embeds. Next: check.py, expr/cel/linking/expressions.py, the snapshot.
Source: the CEL language definition; docs/behaviour/cel 11. ``at`` is the offset in the
text.
"""

from typing import Literal

import msgspec

from kyverno_mp.values.jsonvalue import Json

ConstKind = Literal["null", "bool", "int", "uint", "double", "string", "bytes"]


class Const(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """A literal; ``kind`` distinguishes int from uint and string from bytes."""

    kind: ConstKind
    value: Json
    at: int = 0


class Ident(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """A name; a leading dot, which only denotes the root scope, is dropped."""

    name: str
    at: int = 0


class Select(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """``operand.field``, ``has(operand.field)`` or ``operand.?field``."""

    operand: "Node"
    field: str
    test: bool = False
    optional: bool = False
    at: int = 0


class Call(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A function or operator; an operator's name is its sign.

    ``&&`` and ``||`` have all their terms as arguments; the index is ``_[_]`` and
    ``_[?_]``, the ternary ``?:``, negation ``-_`` and ``!_``.
    """

    function: str
    target: "Node | None"
    args: "tuple[Node, ...]"
    at: int = 0


class ListLit(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """``[a, ?b]``; ``optional`` contains the positions with a question mark."""

    items: "tuple[Node, ...]"
    optional: tuple[int, ...] = ()
    at: int = 0


class MapLit(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """``{k: v, ?k: v}``: (key, value, is optional)."""

    entries: "tuple[tuple[Node, Node, bool], ...]"
    at: int = 0


class StructLit(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """``Name{field: value}``: (field, value, is optional)."""

    name: str
    fields: "tuple[tuple[str, Node, bool], ...]"
    at: int = 0


class Macro(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """A macro that binds names: a comprehension, ``cel.bind``, ``optMap``, ``sortBy``.

    ``body`` contains the expressions in which ``names`` are bound, in the macro's
    order.
    """

    kind: str
    range: "Node"
    names: tuple[str, ...]
    body: "tuple[Node, ...]"
    at: int = 0


Node = Const | Ident | Select | Call | ListLit | MapLit | StructLit | Macro


class Expression(msgspec.Struct, frozen=True, array_like=True):
    """One CEL text; either ``node`` or, if it does not compile, ``error`` is set."""

    text: str
    node: Node | None = None
    error: str = ""
