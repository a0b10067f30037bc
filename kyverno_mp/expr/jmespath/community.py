"""Link the dialect of kyverno-json: JMESPath community edition.

Room: expr. Takes: nodes of ``parse(text, community=True)``. Gives: Query.
Next: expr/assertion.
May touch: nothing outside its arguments; ``let`` changes ``runtime.bindings`` while its
body runs and puts it back.
Source: spec/engine.md 6.7; differences from link.py: a missing key is null, null ends a
path, errors pass, int and float both order, ``$name``, ``$``, ``let``, arithmetic.
"""

import math
from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.jmespath import closures as build
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.functions import calls
from kyverno_mp.expr.jmespath.functions.community import COMMUNITY
from kyverno_mp.expr.jmespath.interim import Closure, Reference, fail, floats, leave
from kyverno_mp.expr.jmespath.link import Query, spine, too_much
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.expr.scope import Bindings, Runtime
from kyverno_mp.values.jsonvalue import Json

_UNBOUND: Final = object()


class _Names:
    """Bindings of one ``let`` before those around it."""

    __slots__ = ("around", "own")

    def __init__(self, own: dict[str, Json], around: Bindings | None) -> None:
        self.own = own
        self.around = around

    def get(self, name: str, default: Json, /) -> Json:
        if name in self.own:
            return self.own[name]
        return default if self.around is None else self.around.get(name, default)


def link_community(node: Node) -> Query:
    """Make the query; ``$name`` is looked up in ``runtime.bindings`` when it runs.

    The query raises ExpressionFailed, BudgetExceeded or DeadlinePassed, never
    UnknownKey. Its result is plain JSON, floats for ints as ``link`` gives them.
    """
    closure = _link(node)

    def query(runtime: Runtime, value: Json) -> Json:
        around = runtime.bindings
        runtime.bindings = _Names({"$": value}, around)
        try:
            result = leave(runtime, closure(runtime, value))
            return floats(runtime, result) if runtime.ints_are_numbers else result
        except (RecursionError, OverflowError, MemoryError) as error:
            raise too_much(error) from error
        finally:
            runtime.bindings = around

    return query


def _link(node: Node) -> Closure:
    match node:
        case nodes.Field() | nodes.Subexpression() | nodes.IndexExpression():
            return _link_path(node)
        case nodes.Literal(value):
            return build.constant(value)
        case nodes.Identity() | nodes.Current():
            return build.current
        case nodes.Variable(name):
            return _variable(name)
        case nodes.Comparator(operator, left, right):
            return _link_comparator(operator, left, right)
        case nodes.And(left, right):
            return build.conjunction(_link(left), _link(right))
        case nodes.Or(left, right):
            return build.disjunction(_link(left), _link(right))
        case nodes.Not(child):
            return build.negation(_link(child))
        case nodes.Pipe(left, right):
            return build.pipe(_link(left), _link(right))
    return _link_rare(node)


def _link_rare(node: Node) -> Closure:
    match node:
        case nodes.Index(position):
            return build.index(position)
        case nodes.Slice():
            return _link_slice(node)
        case nodes.Function(name, arguments):
            closures = tuple(map(_link, arguments))
            return calls.link_call(COMMUNITY, name, closures)
        case nodes.ExpressionReference(child):
            return build.constant(Reference(_link(child)))
        case nodes.Root():
            return _variable("$")
        case nodes.Let(pairs, body):
            return _link_let(pairs, body)
        case nodes.Unary(operator, child):
            return _link_unary(operator, _link(child))
        case nodes.Arithmetic(operator, left, right):
            return _link_arithmetic(operator, _link(left), _link(right))
    return _link_collecting(node)


def _link_collecting(node: Node) -> Closure:
    match node:
        case nodes.Flatten(left):
            return build.flattening(_link(left))
        case nodes.Projection(left, right):
            return _link_projection(left, right)
        case nodes.FilterProjection(left, right, condition):
            return build.selection(_link(left), _link(right), _link(condition))
        case nodes.ValueProjection(left, right):
            source = _link(left)
            return build.value_projection(source, _link(right), nulls_first=False)
        case nodes.MultiSelectList(children):
            return build.multi_list(tuple(map(_link, children)), of_null=True)
        case nodes.MultiSelectHash(pairs):
            linked = tuple((key, _link(child)) for key, child in pairs)
            return build.multi_hash(linked, of_null=True)
    raise fail("Unknown AST node: ASTEmpty")


def _link_path(node: Node) -> Closure:
    """Link a chain; null ends it."""
    linked: list[Closure] = []
    names: list[str] = []
    for step in spine(node):
        if type(step) is nodes.Field:
            names.append(step.name)
            continue
        if names:
            linked.append(build.names_or_null(names))
            names = []
        linked.append(_link(step))
    if names:
        linked.append(build.names_or_null(names))
    if len(linked) == 1:
        return linked[0]
    first, rest = linked[0], tuple(linked[1:])

    def follow(runtime: Runtime, current: Json) -> Json:
        current = first(runtime, current)
        for closure in rest:
            if current is None:
                return None
            current = closure(runtime, current)
        return current

    return follow


def _variable(name: str) -> Closure:
    def look_up(runtime: Runtime, _current: Json) -> Json:
        bindings = runtime.bindings
        value = _UNBOUND if bindings is None else bindings.get(name, _UNBOUND)
        if value is _UNBOUND:
            raise fail(f"variable not defined: {name}")
        return value

    return look_up


def _link_let(pairs: tuple[tuple[str, Node], ...], body: Node) -> Closure:
    linked = tuple((name, _link(child)) for name, child in pairs)
    inner = _link(body)

    def let(runtime: Runtime, current: Json) -> Json:
        around = runtime.bindings
        # All values are computed before any name is bound.
        own = {name: closure(runtime, current) for name, closure in linked}
        runtime.bindings = _Names(own, around)
        try:
            return inner(runtime, current)
        finally:
            runtime.bindings = around

    return let


def _number(_runtime: Runtime, value: Json) -> float | None:
    """Take any Go number for a float64."""
    if isinstance(value, (int, float)) and type(value) is not bool:
        return float(value)
    return None


def _link_comparator(operator: str, left: Node, right: Node) -> Closure:
    first, second = _link(left), _link(right)
    if operator in ("==", "!="):
        return build.comparison(operator, first, second, right)
    return build.ordering(operator, first, second, _number)


def _link_unary(operator: str, closure: Closure) -> Closure:
    sign = -1.0 if operator == "-" else 1.0

    def apply(runtime: Runtime, current: Json) -> Json:
        number = _number(runtime, closure(runtime, current))
        return None if number is None else sign * number

    return apply


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _floor_divide(left: float, right: float) -> float:
    quotient = _divide(left, right)
    return float(math.floor(quotient)) if math.isfinite(quotient) else quotient


def _modulo(left: float, right: float) -> float:
    if not right or math.isinf(left):
        return math.nan
    return math.fmod(left, right)


_OPERATIONS: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
}


def _link_arithmetic(operator: str, first: Closure, second: Closure) -> Closure:
    compute = _OPERATIONS[operator]

    def apply(runtime: Runtime, current: Json) -> Json:
        left, right = first(runtime, current), second(runtime, current)
        number, other = _number(runtime, left), _number(runtime, right)
        if number is None or other is None:
            return None
        return compute(number, other)

    return apply


def _link_slice(node: nodes.Slice) -> Closure:
    of_list = build.cut_slice(node)
    part = slice(node.start, node.stop, node.step)

    def cut(runtime: Runtime, current: Json) -> Json:
        if type(current) is str:
            runtime.charge_bytes(len(current))
            return None if part.step == 0 else current[part]
        return of_list(runtime, current)

    return cut


def _link_projection(left: Node, right: Node) -> Closure:
    source = _link(left)
    project = build.projection(source, _link(right))
    sliced = type(left) is nodes.IndexExpression and type(left.right) is nodes.Slice
    if not sliced:
        return project

    def project_slice(runtime: Runtime, current: Json) -> Json:
        value = source(runtime, current)
        return value if type(value) is str else over_value(runtime, value)

    over_value = build.projection(build.current, _link(right))
    return project_slice
