"""Compile the JMESPath dialect of assertion trees to closures.

Room: expr.assertion. Takes: nodes read with ``community=True``. Gives: closures
``closure(runtime, current) -> Json``. Next: link.
May touch: ``runtime.bindings``, which a ``let`` modifies while its body runs.
Source: docs/behaviour/engine 6.7; github.com/jmespath-community/go-jmespath,
interpreter.go.

Differences from Kyverno's dialect: a missing key is null, operators accept every Go
number, strings can be sliced, and a multi-select also runs on null.
"""

import math
from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.calls import link_call
from kyverno_mp.expr.assertion.gotypes import GoStruct, NilMap
from kyverno_mp.expr.jmespath import closures as build
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.interim import Closure, Reference, equal, fail, is_false
from kyverno_mp.expr.jmespath.nodes import Node, nodes_of
from kyverno_mp.expr.scope import Bindings, Runtime
from kyverno_mp.values.jsonvalue import Json

_NODES_PER_STEP: Final = 4
_UNBOUND: Final = object()


def link_dialect(node: Node) -> Closure:
    """Link one expression.

    The closure raises ExpressionFailed with the Go program's text, BudgetExceeded or
    DeadlinePassed; it never modifies its input.
    """
    match node:
        case nodes.Field(name):
            return lambda _runtime, current: (
                current.get(name) if type(current) is dict else _member(current, name)
            )
        case nodes.Subexpression(left, right) | nodes.IndexExpression(left, right):
            return _link_step(link_dialect(left), link_dialect(right))
        case nodes.Literal(value):
            return lambda _runtime, _current: value
        case nodes.Identity() | nodes.Current():
            return lambda _runtime, current: current
        case nodes.Root():
            # KYVERNO: upstream creates the interpreter without data, so ``$`` is null.
            return lambda _runtime, _current: None
        case nodes.Variable(name):
            return _link_variable(name)
        case nodes.Let(bindings, body):
            pairs = tuple((name, link_dialect(value)) for name, value in bindings)
            return _link_let(pairs, link_dialect(body))
        case nodes.Function(name, arguments):
            return link_call(name or "", tuple(map(link_dialect, arguments)))
        case nodes.ExpressionReference(child):
            reference = Reference(_repeated(child))
            return lambda _runtime, _current: reference
    return _link_operator(node)


def _link_operator(node: Node) -> Closure:
    match node:
        case nodes.Comparator(operator, left, right):
            return _link_comparator(operator, link_dialect(left), link_dialect(right))
        case nodes.Arithmetic(operator, left, right):
            return _link_arithmetic(operator, link_dialect(left), link_dialect(right))
        case nodes.Unary(operator, child):
            return _link_unary(link_dialect(child), negative=operator == "-")
        case nodes.And(left, right):
            return _link_either(link_dialect(left), link_dialect(right), stop=True)
        case nodes.Or(left, right):
            return _link_either(link_dialect(left), link_dialect(right), stop=False)
        case nodes.Not(child):
            closure = link_dialect(child)
            return lambda runtime, current: is_false(closure(runtime, current))
        case nodes.Pipe(left, right):
            first, second = link_dialect(left), link_dialect(right)
            return lambda runtime, current: second(runtime, first(runtime, current))
    return _link_collection(node)


def _link_collection(node: Node) -> Closure:
    match node:
        case nodes.Index(position):
            return _link_index(position)
        case nodes.Slice():
            return _link_slice(node)
        case nodes.Flatten(left):
            return _link_flatten(link_dialect(left))
        case nodes.Projection(left, right):
            sliced = type(left) is nodes.IndexExpression and (
                type(left.right) is nodes.Slice
            )
            return _link_projection(link_dialect(left), right, sliced=sliced)
        case nodes.FilterProjection(left, right, condition):
            test = _repeated(condition)
            return _link_filter(link_dialect(left), _repeated(right), test)
        case nodes.ValueProjection(left, right):
            return _link_values(link_dialect(left), _repeated(right))
        case nodes.MultiSelectList(children):
            closures = tuple(map(link_dialect, children))
            return build.multi_list(closures, of_null=True)
        case nodes.MultiSelectHash(pairs):
            members = tuple((key, link_dialect(child)) for key, child in pairs)
            return build.multi_hash(members, of_null=True)
    return _unknown_node


def _repeated(node: Node) -> Closure:
    """Link the part that runs once per item, and charge its nodes."""
    closure = link_dialect(node)
    steps = nodes_of(node) // _NODES_PER_STEP

    def repeated(runtime: Runtime, current: Json) -> Json:
        runtime.charge(steps)
        return closure(runtime, current)

    return repeated if steps else closure


def _member(current: Json, name: str | None) -> Json:
    return current.member(name or "") if isinstance(current, GoStruct) else None


def _unknown_node(_runtime: Runtime, _current: Json) -> Json:
    raise fail("Unknown AST node: ASTEmpty")


def _link_step(first: Closure, second: Closure) -> Closure:
    def step(runtime: Runtime, current: Json) -> Json:
        intermediate = first(runtime, current)
        return None if intermediate is None else second(runtime, intermediate)

    return step


def _link_variable(name: str) -> Closure:
    def resolve(runtime: Runtime, _current: Json) -> Json:
        bindings = runtime.bindings
        value = _UNBOUND if bindings is None else bindings.get(name, _UNBOUND)
        if value is _UNBOUND:
            raise fail(f"variable not defined: {name}")
        return value

    return resolve


class _Inner:
    """The bindings of a ``let``, followed by the outer ones."""

    __slots__ = ("_bound", "_outer")

    def __init__(self, bound: dict[str, Json], outer: Bindings | None) -> None:
        self._bound = bound
        self._outer = outer

    def get(self, name: str, default: Json, /) -> Json:
        if name in self._bound or self._outer is None:
            return self._bound.get(name, default)
        return self._outer.get(name, default)


def _link_let(pairs: tuple[tuple[str, Closure], ...], body: Closure) -> Closure:
    def let(runtime: Runtime, current: Json) -> Json:
        outer = runtime.bindings
        # As in Go, the values cannot refer to each other's names.
        bound = {name: value(runtime, current) for name, value in pairs}
        runtime.bindings = _Inner(bound, outer)
        try:
            return body(runtime, current)
        finally:
            runtime.bindings = outer

    return let


def _number(value: Json) -> float | None:
    """Return the value of any Go number, including int64 but not bool."""
    if type(value) is bool or not isinstance(value, (int, float)):
        return None
    return float(value)


_ORDERINGS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _link_comparator(operator: str, first: Closure, second: Closure) -> Closure:
    if operator in {"==", "!="}:
        expected = operator == "=="
        return lambda runtime, current: (
            equal(runtime, first(runtime, current), second(runtime, current))
            is expected
        )
    return _on_numbers(_ORDERINGS[operator], first, second)


def _on_numbers(
    operation: Callable[[float, float], Json], first: Closure, second: Closure
) -> Closure:
    def operate(runtime: Runtime, current: Json) -> Json:
        left, right = first(runtime, current), second(runtime, current)
        a, b = _number(left), _number(right)
        return None if a is None or b is None else operation(a, b)

    return operate


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _floor_divide(a: float, b: float) -> float:
    quotient = _divide(a, b)
    return float(math.floor(quotient)) if math.isfinite(quotient) else quotient


def _modulo(a: float, b: float) -> float:
    if b == 0 or math.isinf(a) or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.fmod(a, b)


_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
}


def _link_arithmetic(operator: str, first: Closure, second: Closure) -> Closure:
    return _on_numbers(_ARITHMETIC[operator], first, second)


def _link_unary(closure: Closure, *, negative: bool) -> Closure:
    def sign(runtime: Runtime, current: Json) -> Json:
        number = _number(closure(runtime, current))
        return -number if negative and number is not None else number

    return sign


def _link_either(first: Closure, second: Closure, *, stop: bool) -> Closure:
    """Link ``&&`` (stops at a false left side) and ``||`` (stops at a true one)."""

    def either(runtime: Runtime, current: Json) -> Json:
        value = first(runtime, current)
        return value if is_false(value) is stop else second(runtime, current)

    return either


def _link_index(position: int) -> Closure:
    def index(_runtime: Runtime, current: Json) -> Json:
        if not isinstance(current, list):
            return None
        count = len(current)
        return current[position] if -count <= position < count else None

    return index


def _link_slice(node: nodes.Slice) -> Closure:
    part = slice(node.start, node.stop, node.step)

    def cut(runtime: Runtime, current: Json) -> Json:
        if type(current) is str:
            runtime.charge_made(len(current), current)
            # Upstream ignores the error of step 0 for a string.
            return None if part.step == 0 else current[part]
        if not isinstance(current, list):
            return None
        if part.step == 0:
            raise fail("invalid slice, step cannot be 0")
        runtime.charge_items(len(current))
        return list(current[part])

    return cut


def _swallowed(closure: Closure, runtime: Runtime, current: Json) -> Json:
    """Run the left side of a filter, a flatten or ``.*``; its errors become null."""
    try:
        return closure(runtime, current)
    except ExpressionFailed:
        return None


def _link_flatten(closure: Closure) -> Closure:
    def flatten(runtime: Runtime, current: Json) -> Json:
        value = _swallowed(closure, runtime, current)
        if not isinstance(value, list):
            return None
        runtime.charge_items(len(value))
        flat: list[Json] = []
        for item in value:
            if isinstance(item, list):
                runtime.charge_items(len(item))
                flat.extend(item)
            else:
                flat.append(item)
        return flat

    return flatten


def _collect(runtime: Runtime, closure: Closure, items: list[Json]) -> list[Json]:
    runtime.charge_items(2 * len(items))
    results = [closure(runtime, item) for item in items]
    return [result for result in results if result is not None]


def _link_projection(source: Closure, right: Node, *, sliced: bool) -> Closure:
    closure = _repeated(right)

    def project(runtime: Runtime, current: Json) -> Json:
        value = source(runtime, current)
        if isinstance(value, list):
            return _collect(runtime, closure, value)
        return value if sliced and isinstance(value, str) else None

    return project


def _link_filter(source: Closure, closure: Closure, test: Closure) -> Closure:
    def select(runtime: Runtime, current: Json) -> Json:
        value = _swallowed(source, runtime, current)
        if not isinstance(value, list):
            return None
        runtime.charge_items(2 * len(value))
        chosen = [item for item in value if not is_false(test(runtime, item))]
        return _collect(runtime, closure, chosen)

    return select


def _link_values(source: Closure, closure: Closure) -> Closure:
    def project_values(runtime: Runtime, current: Json) -> Json:
        value = _swallowed(source, runtime, current)
        if type(value) is not dict:
            return [] if type(value) is NilMap else None
        runtime.charge_items(len(value))
        return _collect(runtime, closure, list(value.values()))

    return project_values
