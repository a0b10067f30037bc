"""Determine which parts of the object a CEL expression reads.

Room: expr. Takes: nodes.Node, the places of variables. Gives: marks on Reads, and the
Found places whose values the result may contain. Next: program/context/cel_reads.py.
Source: the CEL language definition; checked by tests/fuzz/test_cel_reads_fuzz.py.

The analysis follows places, not values, as expr/jmespath/reads.py does: a field leads
to the place below it, a macro to the place of all elements. Functions and operators
read their whole operands. Only the API server's functions are supported, because their
results depend on their arguments alone. An unknown construct raises ReadsUnknown;
nothing is guessed.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Ident,
    ListLit,
    Macro,
    MapLit,
    Node,
    Select,
)
from kyverno_mp.expr.cel.syntax.names import qualified_call
from kyverno_mp.expr.reads import Found, ReadsUnknown, both

_TESTS: Final = frozenset({"all", "exists", "existsOne"})
_OPTIONAL: Final = frozenset({"optMap", "optFlatMap"})
_INDEX: Final = frozenset({"_[_]", "_[?_]"})
_OPERATORS: Final = frozenset({"&&", "||", "!_", "-_"})
_TERNARY: Final = 3
_PAIR: Final = 2
_OLD: Final = "oldObject"
_REQUEST: Final = "request"
_OPERATION: Final = "operation"
_VARIABLES: Final = "variables"

Names = Mapping[str, Found]
Variables = Callable[[str], Found]
"""Returns the origins of a variable's value; raises ReadsUnknown if it has no
expression."""


def follow_cel(node: Node, names: Names, variables: Variables) -> Found:
    """Mark the reads of ``node``, except reads of its result.

    ``names``: the places of ``object`` and of names that macros bind. ``oldObject`` is
    treated as null, and ``request.operation`` as a constant. Raises: ReadsUnknown.
    """
    match node:
        case Const():
            return Found()
        case Ident(name):
            return _named(name, names)
        case Select():
            return _selected(node, names, variables)
        case Call():
            return _called(node, names, variables)
        case ListLit(items):
            item_origins = [follow_cel(item, names, variables) for item in items]
            # Constants have no place.
            return both(
                Found(items=tuple(f for f in item_origins if f.places or f.items))
            )
        case MapLit(entries):
            for key, value, _ in entries:
                _whole((key, value), names, variables)
            return Found()
        case Macro():
            return _repeated(node, names, variables)
    raise ReadsUnknown(type(node).__name__)


def _whole(nodes: tuple[Node, ...], names: Names, variables: Variables) -> Found:
    """Mark everything that the values of these nodes contain."""
    for node in nodes:
        follow_cel(node, names, variables).read_whole()
    return Found()


def _named(name: str, names: Names) -> Found:
    origin = names.get(name)
    if origin is not None:
        return origin
    if name == _OLD:
        return Found()
    raise ReadsUnknown(name)


def _selected(node: Select, names: Names, variables: Variables) -> Found:
    operand = node.operand
    if type(operand) is Ident and operand.name not in names:
        is_plain = not (node.test or node.optional)
        if operand.name == _VARIABLES and is_plain:
            return variables(node.field)
        if (operand.name, node.field) == (_REQUEST, _OPERATION) and is_plain:
            return Found()
    origin = follow_cel(operand, names, variables).named(node.field)
    return Found() if node.test else origin


def _called(node: Call, names: Names, variables: Variables) -> Found:
    function, target, args = node.function, node.target, node.args
    if function == "?:" and len(args) == _TERNARY:
        _whole(args[:1], names, variables)
        return both(*(follow_cel(arg, names, variables) for arg in args[1:]))
    if function in _INDEX and len(args) == _PAIR:
        return _indexed(args[0], args[1], names, variables)
    if function == "+" and len(args) == _PAIR:
        return _added(args, names, variables)
    if function == "size" and len(args) + (target is not None) == 1:
        (measured,) = args or (target,)
        assert measured is not None
        return _measured(follow_cel(measured, names, variables))
    if function == "orValue" and target is not None and len(args) == 1:
        return both(
            *(follow_cel(operand, names, variables) for operand in (target, *args))
        )
    if function == "hasValue" and target is not None and not args:
        follow_cel(target, names, variables)
        return Found()
    if qualified_call(node, base_library(), names):
        return _whole(args, names, variables)
    if function not in _deterministic():
        raise ReadsUnknown(f"function {function}")
    return _whole(args if target is None else (target, *args), names, variables)


@cache
def _deterministic() -> frozenset[str]:
    """Return the functions whose results depend on their arguments alone."""
    library = base_library()
    return _OPERATORS | {*library.functions} | {*library.members}


def _indexed(operand: Node, index: Node, names: Names, variables: Variables) -> Found:
    origin = follow_cel(operand, names, variables)
    if type(index) is Const and index.kind == "string":
        return origin.named(str(index.value))
    if type(index) is Const and index.kind == "int":
        return origin.elements()
    origin.read_whole()
    return _whole((index,), names, variables)


def _added(args: tuple[Node, ...], names: Names, variables: Variables) -> Found:
    """Return the elements of both lists; scalars need no marks, extracts keep them."""
    origins = [follow_cel(arg, names, variables) for arg in args]
    return Found(items=tuple(origin.elements() for origin in origins))


def _measured(origin: Found) -> Found:
    for reads in origin.places:
        reads.names = True
    # Marking the elements also marks the length of a list.
    origin.elements()
    return Found()


def _repeated(node: Macro, names: Names, variables: Variables) -> Found:
    range_origin = follow_cel(node.range, names, variables)
    if len(node.names) != 1:
        raise ReadsUnknown(node.kind)
    (name,) = node.names
    if node.kind == "bind" or node.kind in _OPTIONAL:
        (body,) = node.body
        return follow_cel(body, {**names, name: range_origin}, variables)
    for reads in range_origin.places:
        # Over a map, a macro iterates over the keys.
        reads.names = True
    element = range_origin.elements()
    inner = {**names, name: element}
    if node.kind in _TESTS:
        return _whole(node.body, inner, variables)
    if node.kind == "filter":
        _whole(node.body, inner, variables)
        return Found(items=(element,))
    if node.kind == "map":
        _whole(node.body[:-1], inner, variables)
        return Found(items=(follow_cel(node.body[-1], inner, variables),))
    raise ReadsUnknown(node.kind)
