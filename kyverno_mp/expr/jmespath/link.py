"""Make closures of nodes: everything that needs no input is decided here.

Room: expr. Takes: nodes.Node. Gives: Query, ``query(runtime, input) -> Json``.
Next: template, conditions, program/context, assertion.
May touch: nothing outside its arguments.
Source: spec/engine.md 3.5 (missing keys), 9.1.

A missing key travels as a ``Missing`` value, not as an exception. Each node is linked
either *strict* (may give Missing) or *lenient* (Missing became null already); the
parent knows which one it needs. At the outermost it becomes UnknownKey.
"""

from collections.abc import Callable
from itertools import repeat
from typing import Final, TypeAlias

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.functions import calls
from kyverno_mp.expr.jmespath.interim import (
    Closure,
    GoSlice,
    Missing,
    Reference,
    UnknownKey,
    as_number,
    equal,
    fail,
    floats,
    is_false,
    leave,
)
from kyverno_mp.expr.jmespath.nodes import Node, children_of
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json

Query: TypeAlias = Callable[[Runtime, Json], Json]

_GO_VALUED: Final = frozenset({"compare", "items"})
"""Functions whose results are no plain JSON while the query runs."""
_GROWTH_MAX: Final = 10_000
"""Leaves that shared parts may multiply to before a result is walked."""


def link(node: Node) -> Query:
    """Make the query of Kyverno's dialect.

    The query raises UnknownKey for a missing key that nothing swallowed, otherwise
    ExpressionFailed with the Go program's text, BudgetExceeded or DeadlinePassed. With
    ``runtime.ints_are_numbers`` the ints of its result are floats. It never changes its
    input, and its result may share parts with it: treat both as read-only.
    """
    strict = link_strict(node)
    leaves = _needs_leaving(node)

    def query(runtime: Runtime, value: Json) -> Json:
        try:
            result = strict(runtime, value)
            kind = type(result)
            if kind is str or result is None:
                return result
            if kind is Missing:
                raise UnknownKey(result.key)
            if leaves:
                result = leave(runtime, result)
            if runtime.ints_are_numbers:
                return floats(runtime, result)
        except (RecursionError, OverflowError, MemoryError) as error:
            raise _too_much(error) from error
        return result

    return query


def _too_much(error: Exception) -> ExpressionFailed:
    return ExpressionFailed("expr.too_much", f"expression failed: {error}")


def _needs_leaving(node: Node) -> bool:
    """Tell whether a result must be walked before it leaves.

    It may hold values that exist only in queries; or multi-selects may have made a
    small graph that is an enormous tree, and walking it spends the budget.
    """
    growth = 1
    pending = [node]
    while pending:
        item = pending.pop()
        match item:
            case nodes.MultiSelectList(children) | nodes.MultiSelectHash(children):
                growth *= max(len(children), 1)
                if growth > _GROWTH_MAX:
                    return True
                pending.extend(children_of(item))
            case nodes.Function(name) if name in _GO_VALUED:
                return True
            case nodes.ExpressionReference():
                return True
            case _:
                pending.extend(children_of(item))
    return False


def link_strict(node: Node) -> Closure:
    """Link a node so that a missing key gives Missing."""
    match node:
        case nodes.Field() | nodes.Subexpression() | nodes.IndexExpression():
            return _link_path(node, lenient=False)
        case nodes.And(left, right):
            return _link_and(left, link_strict(right))
    return link_lenient(node)


def link_lenient(node: Node) -> Closure:
    """Link a node so that a missing key gives null."""
    match node:
        case nodes.Field() | nodes.Subexpression() | nodes.IndexExpression():
            return _link_path(node, lenient=True)
        case nodes.Literal(value):
            return lambda _runtime, _current: value
        case nodes.Identity() | nodes.Current():
            return _current
        case nodes.Index(position):
            return _link_index(position)
        case nodes.Slice():
            return _link_slice(node)
        case nodes.Comparator(operator, left, right):
            return _link_comparator(operator, left, right)
        case nodes.And(left, right):
            return _link_and(left, link_lenient(right))
        case nodes.Or(left, right):
            return _link_or(left, right)
        case nodes.Not(child):
            return _link_not(child)
        case nodes.Pipe(left, right):
            return _link_pipe(left, right)
        case nodes.Function(name, arguments):
            closures = tuple(map(link_lenient, arguments))
            return calls.link_call(calls.KYVERNO, name, closures)
        case nodes.ExpressionReference(child):
            reference = Reference(link_lenient(child))
            return lambda _runtime, _current: reference
    return _link_collecting(node)


def _link_collecting(node: Node) -> Closure:
    match node:
        case nodes.Flatten(left):
            return _link_flatten(left)
        case nodes.Projection(left, right):
            return _link_projection(left, right)
        case nodes.FilterProjection(left, right, condition):
            return _link_filter(left, right, condition)
        case nodes.ValueProjection(left, right):
            return _link_value_projection(left, right)
        case nodes.MultiSelectList(children):
            return _link_list(children)
        case nodes.MultiSelectHash(pairs):
            return _link_hash(pairs)
    return _unknown_node


def _current(_runtime: Runtime, current: Json) -> Json:
    return current


def _unknown_node(_runtime: Runtime, _current: Json) -> Json:
    raise fail("Unknown AST node: ASTEmpty")


def _spine(node: Node) -> list[Node]:
    """Lay out a chain ``a.b[0].c`` as the steps taken from left to right."""
    steps: list[Node] = []
    while isinstance(node, (nodes.Subexpression, nodes.IndexExpression)):
        steps.append(node.right)
        node = node.left
    steps.append(node)
    steps.reverse()
    flat: list[Node] = []
    for step in steps:
        nested = isinstance(step, (nodes.Subexpression, nodes.IndexExpression))
        flat.extend(_spine(step) if nested else (step,))
    return flat


def _link_path(node: Node, *, lenient: bool) -> Closure:
    """Link a chain; runs of plain names become one loop."""
    steps = _spine(node)
    closures: list[Closure] = []
    names: list[str] = []
    for step in steps:
        if type(step) is nodes.Field:
            names.append(step.name)
            continue
        if names:
            closures.append(_names(names))
            names = []
        closures.append(link_strict(step))
    if names:
        closures.append((_names_lenient if lenient else _names)(names))
    elif lenient:
        closures[-1] = link_lenient(steps[-1])
    if len(closures) == 1:
        return closures[0]
    if len(closures) == 2:  # noqa: PLR2004 - the common case, without a loop
        return _two_steps(closures[0], closures[1], lenient=lenient)
    rest = tuple(closures)

    def follow(runtime: Runtime, current: Json) -> Json:
        for closure in rest:
            current = closure(runtime, current)
            if type(current) is Missing:
                return None if lenient else current
        return current

    return follow


def _two_steps(first: Closure, second: Closure, *, lenient: bool) -> Closure:
    def follow_two(runtime: Runtime, current: Json) -> Json:
        left = first(runtime, current)
        if type(left) is Missing:
            return None if lenient else left
        return second(runtime, left)

    return follow_two


def _names(names: list[str]) -> Closure:
    if len(names) == 1:
        name = names[0]
        absent = Missing(name)
        return lambda _runtime, current: (
            current.get(name, absent) if type(current) is dict else None
        )
    steps = tuple((name, Missing(name)) for name in names)

    def walk(_runtime: Runtime, current: Json) -> Json:
        for name, absent in steps:
            if type(current) is not dict:
                return None
            current = current.get(name, absent)
            if current is absent:
                return current
        return current

    return walk


def _names_lenient(names: list[str]) -> Closure:
    if len(names) == 1:
        name = names[0]
        return lambda _runtime, current: (
            current.get(name) if type(current) is dict else None
        )
    steps = tuple(names)

    def walk(_runtime: Runtime, current: Json) -> Json:
        for name in steps:
            if type(current) is not dict:
                return None
            current = current.get(name)
        return current

    return walk


def _link_index(position: int) -> Closure:
    def index(_runtime: Runtime, current: Json) -> Json:
        if isinstance(current, list):
            count = len(current)
            if -count <= position < count:
                return current[position]
        return None

    return index


def _link_slice(node: nodes.Slice) -> Closure:
    part = slice(node.start, node.stop, node.step)

    def cut(runtime: Runtime, current: Json) -> Json:
        if not isinstance(current, list):
            return None
        if part.step == 0:
            raise fail("Invalid slice, step cannot be 0")
        runtime.charge(len(current))
        return list(current[part])

    return cut


def _link_comparator(operator: str, left: Node, right: Node) -> Closure:
    first, second = link_lenient(left), link_lenient(right)
    if operator in ("==", "!="):
        return _link_equality(first, second, right, wanted=operator == "==")
    compare = _ORDERINGS[operator]

    def order(runtime: Runtime, current: Json) -> Json:
        a, b = first(runtime, current), second(runtime, current)
        number = as_number(runtime, a)
        if number is None:
            return None
        other = as_number(runtime, b)
        return None if other is None else compare(number, other)

    return order


_ORDERINGS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _link_equality(
    first: Closure, second: Closure, right: Node, *, wanted: bool
) -> Closure:
    if type(right) is nodes.Literal and type(right.value) in (str, bool, type(None)):
        literal = right.value
        if type(literal) is str:
            return lambda runtime, current: (
                (first(runtime, current) == literal) is wanted
            )
        return lambda runtime, current: (first(runtime, current) is literal) is wanted
    return lambda runtime, current: (
        equal(runtime, first(runtime, current), second(runtime, current)) is wanted
    )


def _link_and(left: Node, right: Closure) -> Closure:
    first = link_lenient(left)

    def both(runtime: Runtime, current: Json) -> Json:
        value = first(runtime, current)
        return value if is_false(value) else right(runtime, current)

    return both


def _link_or(left: Node, right: Node) -> Closure:
    first, second = link_lenient(left), link_lenient(right)

    def either(runtime: Runtime, current: Json) -> Json:
        value = first(runtime, current)
        if value or not is_false(value):
            return value
        return second(runtime, current)

    return either


def _link_not(child: Node) -> Closure:
    closure = link_lenient(child)
    return lambda runtime, current: is_false(closure(runtime, current))


def _link_pipe(left: Node, right: Node) -> Closure:
    first, second = link_lenient(left), link_lenient(right)
    return lambda runtime, current: second(runtime, first(runtime, current))


def _link_flatten(left: Node) -> Closure:
    closure = link_lenient(left)

    def flatten(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = closure(runtime, current)
        except BudgetExceeded:
            raise
        except ExpressionFailed:
            return None
        if not isinstance(value, list):
            return None
        runtime.charge(len(value))
        flat: list[Json] = []
        for item in value:
            if isinstance(item, list):
                runtime.charge(len(item))
                flat.extend(item)
            else:
                flat.append(item)
        return flat

    return flatten


def _is_identity(node: Node) -> bool:
    return type(node) is nodes.Identity or type(node) is nodes.Current


def _link_projection(left: Node, right: Node) -> Closure:
    source = link_lenient(left)
    if _is_identity(right):

        def keep(runtime: Runtime, current: Json) -> Json:
            value = source(runtime, current)
            if not isinstance(value, list):
                return None
            runtime.charge(len(value))
            return [item for item in value if item is not None]

        return keep
    closure = link_lenient(right)

    def project(runtime: Runtime, current: Json) -> Json:
        value = source(runtime, current)
        if not isinstance(value, list):
            return None
        runtime.charge(len(value))
        results = [closure(runtime, item) for item in value]
        return [item for item in results if item is not None]

    return project


def _link_filter(left: Node, right: Node, condition: Node) -> Closure:
    source, test = link_lenient(left), link_lenient(condition)
    closure = link_lenient(right)

    def select(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = source(runtime, current)
        except BudgetExceeded:
            raise
        except ExpressionFailed:
            return None
        if not isinstance(value, list):
            return None
        runtime.charge(len(value))
        chosen: list[Json] = []
        for item in value:
            if not is_false(test(runtime, item)):
                result = closure(runtime, item)
                if result is not None:
                    chosen.append(result)
        return chosen

    return select


def _link_value_projection(left: Node, right: Node) -> Closure:
    source, closure = link_lenient(left), link_lenient(right)

    def project_values(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = source(runtime, current)
        except BudgetExceeded:
            raise
        except ExpressionFailed:
            return None
        if type(value) is not dict:
            return None
        runtime.charge(len(value))
        results: list[Json] = []
        if value:
            # KYVERNO: 9.1 - Go appends the values to as many nulls; the right side
            # sees those nulls first.
            on_null = closure(runtime, None)
            if on_null is not None:
                results.extend(repeat(on_null, len(value)))
        for item in value.values():
            result = closure(runtime, item)
            if result is not None:
                results.append(result)
        return results

    return project_values


def _link_list(children: tuple[Node, ...]) -> Closure:
    if all(type(child) is nodes.Field for child in children):
        names = [child.name for child in children if type(child) is nodes.Field]

        def pick(_runtime: Runtime, current: Json) -> Json:
            if type(current) is dict:
                get = current.get
                return [get(name) for name in names]
            return None if current is None else [None] * len(names)

        return pick
    closures = tuple(map(link_lenient, children))

    def collect(runtime: Runtime, current: Json) -> Json:
        if current is None:
            return None
        runtime.charge(len(closures))
        return [closure(runtime, current) for closure in closures]

    return collect


def _link_hash(pairs: tuple[tuple[str, Node], ...]) -> Closure:
    closures = tuple((key, link_lenient(child)) for key, child in pairs)

    def collect(runtime: Runtime, current: Json) -> Json:
        if current is None:
            return None
        runtime.charge(len(closures))
        return {key: closure(runtime, current) for key, closure in closures}

    return collect


__all__ = ["GoSlice", "Query", "link", "link_lenient", "link_strict"]
