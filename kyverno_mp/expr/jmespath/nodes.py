"""Define the records of parsed JMESPath, which a snapshot stores.

Room: expr. Takes: written by parse.py. Gives: Node, the union of all syntax records.
Next: link.py compiles them to closures; ir embeds them.
Source: docs/behaviour/engine 9.1; the record names equal the Go parser's.
"""

from typing import TypeAlias, Union

from msgspec import Struct

from kyverno_mp.values.jsonvalue import Json


class Empty(Struct, frozen=True, array_like=True, tag="empty"):
    """An index that does not parse; evaluating it is an error."""


class Identity(Struct, frozen=True, array_like=True, tag="id"):
    """The current value, for an omitted expression."""


class Current(Struct, frozen=True, array_like=True, tag="@"):
    """``@``."""


class Root(Struct, frozen=True, array_like=True, tag="$"):
    """``$``: the input of the whole query (community dialect)."""


class Field(Struct, frozen=True, array_like=True, tag="f"):
    """``name`` or ``"name"``."""

    name: str


class Literal(Struct, frozen=True, array_like=True, tag="l"):
    """A backtick or raw string literal; numbers are floats."""

    value: Json


class Index(Struct, frozen=True, array_like=True, tag="i"):
    """``[n]``."""

    position: int


class Slice(Struct, frozen=True, array_like=True, tag="sl"):
    """``[start:stop:step]``."""

    start: int | None
    stop: int | None
    step: int | None


class Subexpression(Struct, frozen=True, array_like=True, tag="."):
    """``left.right``."""

    left: "Node"
    right: "Node"


class IndexExpression(Struct, frozen=True, array_like=True, tag="ix"):
    """``left[n]`` or ``left[a:b]``."""

    left: "Node"
    right: "Node"


class Flatten(Struct, frozen=True, array_like=True, tag="[]"):
    """The flattening part of ``left[]``."""

    left: "Node"


class Projection(Struct, frozen=True, array_like=True, tag="p"):
    """``left[*].right``, and the projection part of ``left[]`` and of slices."""

    left: "Node"
    right: "Node"


class FilterProjection(Struct, frozen=True, array_like=True, tag="[?"):
    """``left[?condition].right``."""

    left: "Node"
    right: "Node"
    condition: "Node"


class ValueProjection(Struct, frozen=True, array_like=True, tag="*"):
    """``left.*.right``."""

    left: "Node"
    right: "Node"


class Comparator(Struct, frozen=True, array_like=True, tag="cmp"):
    """``left operator right``; the operator as written."""

    operator: str
    left: "Node"
    right: "Node"


class Or(Struct, frozen=True, array_like=True, tag="||"):
    """``left || right``."""

    left: "Node"
    right: "Node"


class And(Struct, frozen=True, array_like=True, tag="&&"):
    """``left && right``."""

    left: "Node"
    right: "Node"


class Not(Struct, frozen=True, array_like=True, tag="!"):
    """``!child``."""

    child: "Node"


class Pipe(Struct, frozen=True, array_like=True, tag="|"):
    """``left | right``."""

    left: "Node"
    right: "Node"


class ExpressionReference(Struct, frozen=True, array_like=True, tag="&"):
    """``&child``."""

    child: "Node"


class Function(Struct, frozen=True, array_like=True, tag="fn"):
    """``name(arguments)``; None where Go finds no name in the node before ``(``."""

    name: str | None
    arguments: tuple["Node", ...]


class MultiSelectList(Struct, frozen=True, array_like=True, tag="ml"):
    """``[a, b]``."""

    children: tuple["Node", ...]


class MultiSelectHash(Struct, frozen=True, array_like=True, tag="mh"):
    """``{k: a, l: b}``."""

    pairs: tuple[tuple[str, "Node"], ...]


class Arithmetic(Struct, frozen=True, array_like=True, tag="ar"):
    """``left operator right`` with ``+ - * / // %`` (community dialect)."""

    operator: str
    left: "Node"
    right: "Node"


class Unary(Struct, frozen=True, array_like=True, tag="un"):
    """``+child`` or ``-child`` (community dialect)."""

    operator: str
    child: "Node"


class Variable(Struct, frozen=True, array_like=True, tag="var"):
    """``$name``; the name includes the dollar sign (community dialect)."""

    name: str


class Let(Struct, frozen=True, array_like=True, tag="let"):
    """``let $a = x, $b = y in body`` (community dialect)."""

    bindings: tuple[tuple[str, "Node"], ...]
    body: "Node"


Node: TypeAlias = Union[  # noqa: UP007 - a forward-referenced alias needs Union
    Empty,
    Identity,
    Current,
    Root,
    Field,
    Literal,
    Index,
    Slice,
    Subexpression,
    IndexExpression,
    Flatten,
    Projection,
    FilterProjection,
    ValueProjection,
    Comparator,
    Or,
    And,
    Not,
    Pipe,
    ExpressionReference,
    Function,
    MultiSelectList,
    MultiSelectHash,
    Arithmetic,
    Unary,
    Variable,
    Let,
]


def children_of(node: Node) -> tuple[Node, ...]:
    """Return the children of ``node`` in source order."""
    match node:
        case Flatten(left):
            return (left,)
        case FilterProjection(left, right, condition):
            return (left, right, condition)
        case Function(_, children) | MultiSelectList(children):
            return children
        case MultiSelectHash(pairs):
            return tuple(child for _, child in pairs)
        case Not(child) | ExpressionReference(child) | Unary(_, child):
            return (child,)
        case Let(pairs, body):
            return (*(child for _, child in pairs), body)
        case Empty() | Identity() | Current() | Root() | Field() | Literal():
            return ()
        case Index() | Slice() | Variable():
            return ()
    return (node.left, node.right)


def nodes_of(root: Node) -> int:
    """Count the nodes of a tree."""
    count = 0
    pending = [root]
    while pending:
        count += 1
        pending.extend(children_of(pending.pop()))
    return count
