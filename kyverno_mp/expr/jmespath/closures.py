"""Build the closures of operators from the closures of their operands.

Room: expr. Takes: linked operands. Gives: closures. Next: link.py.
Source: docs/behaviour/engine 3.5, 9.1.
"""

from collections.abc import Callable
from itertools import repeat
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.interim import (
    Closure,
    Missing,
    as_number,
    equal,
    fail,
    is_false,
)
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json


def current(_runtime: Runtime, current: Json) -> Json:
    """Return the current value."""
    return current


_CURRENT: Final = current


def constant(value: Json) -> Closure:
    """Return the closure of a literal."""
    return lambda _runtime, _current: value


def two_steps(first: Closure, second: Closure, *, lenient: bool) -> Closure:
    """Run ``second`` on the result of ``first``."""

    def follow_two(runtime: Runtime, current: Json) -> Json:
        step = first(runtime, current)
        if type(step) is Missing:
            return None if lenient else step
        return second(runtime, step)

    return follow_two


def names_or_missing(names: list[str]) -> Closure:
    """Follow plain names; return Missing if a map lacks one of them."""
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


def names_or_null(names: list[str]) -> Closure:
    """Follow plain names; return null if one of them is absent."""
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


def index(position: int) -> Closure:
    """Return the closure of ``[position]``."""

    def pick_index(_runtime: Runtime, current: Json) -> Json:
        if isinstance(current, list):
            count = len(current)
            if -count <= position < count:
                return current[position]
        return None

    return pick_index


def cut_slice(node: nodes.Slice) -> Closure:
    """Return the closure of ``[start:stop:step]``."""
    part = slice(node.start, node.stop, node.step)

    def cut(runtime: Runtime, current: Json) -> Json:
        if not isinstance(current, list):
            return None
        if part.step == 0:
            raise fail("Invalid slice, step cannot be 0")
        runtime.charge_items(len(current))
        return list(current[part])

    return cut


def comparison(operator: str, first: Closure, second: Closure, right: Node) -> Closure:
    """Compare two values; ``right`` is the node of ``second``, checked for literals."""
    if operator in ("==", "!="):
        return _equality(first, second, right, expected=operator == "==")
    return ordering(operator, first, second, as_number)


def ordering(
    operator: str,
    first: Closure,
    second: Closure,
    as_number: Callable[[Runtime, Json], float | None],
) -> Closure:
    """Compare two numbers; null if one side is not a number."""
    compare = _ORDERINGS[operator]

    def order(runtime: Runtime, current: Json) -> Json:
        a, b = first(runtime, current), second(runtime, current)
        number = as_number(runtime, a)
        if number is None:
            return None
        operand = as_number(runtime, b)
        return None if operand is None else compare(number, operand)

    return order


_ORDERINGS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _equality(
    first: Closure, second: Closure, right: Node, *, expected: bool
) -> Closure:
    if type(right) is nodes.Literal and type(right.value) in (str, bool, type(None)):
        literal = right.value
        if type(literal) is str:
            return lambda runtime, current: (
                (first(runtime, current) == literal) is expected
            )
        return lambda runtime, current: (first(runtime, current) is literal) is expected
    return lambda runtime, current: (
        equal(runtime, first(runtime, current), second(runtime, current)) is expected
    )


def conjunction(first: Closure, right: Closure) -> Closure:
    """Return the closure of ``first && right``."""

    def both(runtime: Runtime, current: Json) -> Json:
        value = first(runtime, current)
        return value if is_false(value) else right(runtime, current)

    return both


def disjunction(first: Closure, second: Closure) -> Closure:
    """Return the closure of ``first || second``."""

    def either(runtime: Runtime, current: Json) -> Json:
        value = first(runtime, current)
        if value or not is_false(value):
            return value
        return second(runtime, current)

    return either


def negation(closure: Closure) -> Closure:
    """Return the closure of ``!closure``."""
    return lambda runtime, current: is_false(closure(runtime, current))


def pipe(first: Closure, second: Closure) -> Closure:
    """Return the closure of ``first | second``."""
    return lambda runtime, current: second(runtime, first(runtime, current))


def flattening(closure: Closure) -> Closure:
    """Flatten one level; null if the operand is not a list."""

    def flatten(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = closure(runtime, current)
        except ExpressionFailed:
            return None
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


def projection(source: Closure, closure: Closure) -> Closure:
    """Map ``closure`` over a list and drop nulls."""
    if closure is current:

        def keep(runtime: Runtime, current: Json) -> Json:
            value = source(runtime, current)
            if not isinstance(value, list):
                return None
            runtime.charge_items(len(value))
            return [item for item in value if item is not None]

        return keep

    def project(runtime: Runtime, current: Json) -> Json:
        value = source(runtime, current)
        if not isinstance(value, list):
            return None
        runtime.charge_items(2 * len(value))
        results = [closure(runtime, item) for item in value]
        return [item for item in results if item is not None]

    return project


def flat_projection(source: Closure, closure: Closure) -> Closure:
    """Run ``projection(flattening(source), closure)`` in one pass.

    PERF: most queries consist of ``list[]`` and ``list[].name``.
    """

    def project_flat(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = source(runtime, current)
        except ExpressionFailed:
            return None
        if not isinstance(value, list):
            return None
        runtime.charge_items(2 * len(value))
        results: list[Json] = []
        for item in value:
            if isinstance(item, list):
                runtime.charge_items(2 * len(item))
                results += map(closure, repeat(runtime), item)
            else:
                results.append(closure(runtime, item))
        return [result for result in results if result is not None]

    def keep_flat(runtime: Runtime, current: Json) -> Json:
        try:
            value = source(runtime, current)
        except ExpressionFailed:
            return None
        if not isinstance(value, list):
            return None
        runtime.charge_items(2 * len(value))
        results: list[Json] = []
        for item in value:
            if isinstance(item, list):
                runtime.charge_items(2 * len(item))
                results += item
            elif item is not None:
                results.append(item)
        return [item for item in results if item is not None]

    return keep_flat if closure is _CURRENT else project_flat


def selection(source: Closure, closure: Closure, test: Closure) -> Closure:
    """Map ``closure`` over the items of a list that pass ``test``."""

    def select(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = source(runtime, current)
        except ExpressionFailed:
            return None
        if not isinstance(value, list):
            return None
        runtime.charge_items(2 * len(value))
        chosen: list[Json] = []
        for item in value:
            if not is_false(test(runtime, item)):
                result = closure(runtime, item)
                if result is not None:
                    chosen.append(result)
        return chosen

    return select


def value_projection(
    source: Closure, closure: Closure, *, nulls_first: bool
) -> Closure:
    """Map ``closure`` over the values of an object."""

    def project_values(runtime: Runtime, current: Json) -> Json:
        # KYVERNO: 9.1 - any error of the left side becomes null.
        try:
            value = source(runtime, current)
        except ExpressionFailed:
            return None
        if type(value) is not dict:
            return None
        runtime.charge_items(2 * len(value))
        results: list[Json] = []
        if value and nulls_first:
            # KYVERNO: 9.1 - Go appends the values to an equal number of nulls, and
            # applies the right side to those nulls first.
            on_null = closure(runtime, None)
            if on_null is not None:
                results.extend(repeat(on_null, len(value)))
        for item in value.values():
            result = closure(runtime, item)
            if result is not None:
                results.append(result)
        return results

    return project_values


def multi_fields(names: list[str]) -> Closure:
    """Pick plain fields into a list."""
    count = len(names)

    def pick(runtime: Runtime, current: Json) -> Json:
        runtime.charge_list(count)
        if type(current) is dict:
            get = current.get
            return [get(name) for name in names]
        return None if current is None else [None] * len(names)

    return pick


def multi_list(closures: tuple[Closure, ...], *, of_null: bool = False) -> Closure:
    """Collect values into a list; ``of_null``: even if the current value is null."""

    def collect(runtime: Runtime, current: Json) -> Json:
        if current is None and not of_null:
            return None
        runtime.charge_list(len(closures))
        return [closure(runtime, current) for closure in closures]

    return collect


def multi_hash(
    closures: tuple[tuple[str, Closure], ...], *, of_null: bool = False
) -> Closure:
    """Collect values into an object; ``of_null``: even if the current value is null."""

    def collect(runtime: Runtime, current: Json) -> Json:
        if current is None and not of_null:
            return None
        runtime.charge_entries(len(closures))
        return {key: closure(runtime, current) for key, closure in closures}

    return collect
