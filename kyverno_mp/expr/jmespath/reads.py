"""Determine which parts of its input a JMESPath query reads.

Room: expr.jmespath. Takes: nodes.Node and the places of its input. Gives: marks on
Reads, and the Found places whose values the result may contain. Next:
program/rule_reads.py.
Source: docs/behaviour/engine 9.1; checked by tests/fuzz/test_reads_fuzz.py.

The analysis follows places, not values: a name leads to the place below it, a list to
the place of all its elements. Nodes that decide or compute (a comparison, ``||``, a
function) read their whole operands. Unknown constructs raise ReadsUnknown; nothing is
guessed.
"""

from typing import Final

from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.expr.reads import Found, ReadsUnknown, both

_PURE: Final = frozenset(
    {"contains", "ends_with", "length", "max", "min", "not_null", "starts_with", "type"}
)
"""Functions whose results depend only on their arguments, and which do not build
strings, because a string could contain a variable."""


def follow(node: Node, origin: Found) -> Found:
    """Mark the reads of ``node`` in ``origin``, except reads of its result.

    Raises: ReadsUnknown.
    """
    match node:
        case nodes.Field(name):
            return origin.named(name)
        case nodes.Identity() | nodes.Current():
            return origin
        case nodes.Literal():
            return Found()
        case (
            nodes.Subexpression(left, right)
            | nodes.IndexExpression(left, right)
            | nodes.Pipe(left, right)
        ):
            return follow(right, follow(left, origin))
        case nodes.Index():
            return origin.elements()
        case nodes.Or(left, right) | nodes.And(left, right):
            first, second = follow(left, origin), follow(right, origin)
            first.read_whole()
            return both(first, second)
        case nodes.Comparator(_, left, right):
            for side in (left, right):
                follow(side, origin).read_whole()
            return Found()
        case nodes.Not(child):
            follow(child, origin).read_whole()
            return Found()
        case nodes.Function(name, arguments):
            return _called(name, arguments, origin)
    return _collected(node, origin)


def _collected(node: Node, origin: Found) -> Found:
    match node:
        case nodes.Flatten(left):
            return Found(items=(_flat(follow(left, origin)),))
        case nodes.Projection(left, right):
            return Found(items=(follow(right, follow(left, origin).elements()),))
        case nodes.FilterProjection(left, right, condition):
            element = follow(left, origin).elements()
            follow(condition, element).read_whole()
            return Found(items=(follow(right, element),))
        case nodes.MultiSelectList(children):
            return Found(items=tuple([follow(child, origin) for child in children]))
    raise ReadsUnknown(type(node).__name__)


def _flat(lists: Found) -> Found:
    """Return the possible origins of an element after flattening one level."""
    element = lists.elements()
    return both(element, element.elements())


def _called(name: str | None, arguments: tuple[Node, ...], origin: Found) -> Found:
    origins = [follow(argument, origin) for argument in arguments]
    if name == "keys" and len(origins) == 1 and not origins[0].items:
        for reads in origins[0].places:
            reads.names = True
        return Found()
    if name not in _PURE:
        raise ReadsUnknown(f"function {name}")
    for each in origins:
        each.read_whole()
    return Found()
