"""Link operators, and members that have specialised closures.

Room: expr. Takes: the Linker and a Call. Gives: closures, None where the general
dispatch applies. Next: expr/cel/linking/expressions.py.
Source: cel-go interpreter/interpretable.go; docs/behaviour/cel 12c.
"""

from collections.abc import Callable
from typing import Any, Final

from kyverno_mp.expr.cel.functions.regexes import (
    SEARCH_COST,
    charge_regex,
    compile_regex,
)
from kyverno_mp.expr.cel.linking.dispatch import link_dispatch
from kyverno_mp.expr.cel.linking.frame import Frame, Linker, Run
from kyverno_mp.expr.cel.linking.optional import (
    found_in,
    link_has_value,
    link_optional_index,
    link_or_optional,
    link_or_value,
)
from kyverno_mp.expr.cel.linking.path import ABSENT, literal_of
from kyverno_mp.expr.cel.nodes import Call, ListLit
from kyverno_mp.expr.cel.operators import (
    add_list,
    add_text,
    contains,
    equal,
    index,
    ordering,
)
from kyverno_mp.expr.cel.refusals import no_overload
from kyverno_mp.expr.cel.values import (
    FAILURE_COST,
    NO_VALUE,
    CelFailed,
    Optional,
    Record,
    Value,
)


def link_operator(linker: Linker, node: Call) -> Run | None:
    """Link an operator; return None if ``node`` is a plain function."""
    special = _OPERATORS.get(node.function)
    return special(linker, node) if special is not None else None


def link_member(linker: Linker, node: Call) -> Run | None:
    """Link a member function with a specialised closure; otherwise return None."""
    special = _MEMBERS.get((node.function, len(node.args)))
    return special(linker, node) if special is not None else None


def _and(linker: Linker, node: Call) -> Run:
    return _logic(linker, node, decisive=False)


def _or(linker: Linker, node: Call) -> Run:
    return _logic(linker, node, decisive=True)


def _logic(linker: Linker, node: Call, *, decisive: bool) -> Run:
    """Link ``&&`` (decided by False) or ``||`` (by True); errors are raised last."""
    linker.cost -= 1
    first = linker.link(node.args[0])
    terms = [first]
    for arg in node.args[1:]:
        terms.append(linker.branch(arg))  # noqa: PERF401 - a comprehension is one more frame at each level
    neutral = not decisive

    def run(s: Frame) -> bool:
        # SAFETY: only the text is kept. An error refers to this frame, so keeping the
        # error here would create a reference cycle that keeps the whole review alive.
        failed = None
        for term in terms:
            try:
                value = term(s)
            except CelFailed as error:
                s[0].left -= FAILURE_COST
                failed = error.message if failed is None else failed
                continue
            if value is neutral:
                continue
            if value is decisive:
                return not neutral
            failed = "no such overload" if failed is None else failed
        if failed is not None:
            raise CelFailed(failed)
        return neutral

    return run


def _not(linker: Linker, node: Call) -> Run:
    run = linker.link(node.args[0])

    def negated(s: Frame) -> bool:
        value = run(s)
        if value is True:
            return False
        if value is False:
            return True
        raise CelFailed("no such overload")

    return negated


def _conditional(linker: Linker, node: Call) -> Run:
    linker.cost -= 1
    condition = linker.link(node.args[0])
    chosen = linker.branch(node.args[1])
    otherwise = linker.branch(node.args[2])

    def run(s: Frame) -> Value:
        value = condition(s)
        if value is True:
            return chosen(s)
        if value is False:
            return otherwise(s)
        raise CelFailed("no such overload")

    return run


def _equals(linker: Linker, node: Call) -> Run:
    left, right = node.args
    literal = literal_of(right)
    if literal is ABSENT and literal_of(left) is not ABSENT:
        left, literal = right, literal_of(left)
    run = linker.link(left)
    if literal is None or literal is True or literal is False:
        return lambda s: run(s) is literal
    if type(literal) is str:
        linker.cost += len(literal) // 10
        return lambda s: bool(run(s) == literal)
    if literal is not ABSENT:
        return lambda s: equal(s[0], run(s), literal)
    right_run = linker.link(right)
    return lambda s: equal(s[0], run(s), right_run(s))


def _differs(linker: Linker, node: Call) -> Run:
    run = _equals(linker, node)
    return lambda s: not run(s)


def _in(linker: Linker, node: Call) -> Run:
    needle, haystack = node.args
    run = linker.link(needle)
    if type(haystack) is ListLit and haystack.items and not haystack.optional:
        literals = [literal_of(item) for item in haystack.items]
        if all(type(literal) is str for literal in literals):
            linker.cost += len(literals)
            words = frozenset(literals)

            def among(s: Frame) -> bool:
                value = run(s)
                # Only another string can be equal to a string.
                return value.__class__ is str and value in words

            return among
    if type(haystack) is ListLit and not haystack.items:
        # cel-go does not evaluate the left side if the list is empty.
        return lambda _s: False
    haystack_run = linker.link(haystack)
    linker.cost += 8
    return lambda s: contains(s[0], run(s), haystack_run(s))


def _compared(linker: Linker, node: Call) -> Run:
    left, right = linker.link(node.args[0]), linker.link(node.args[1])
    compare = ordering(node.function)
    linker.cost += 4

    def compared(s: Frame) -> bool:
        first = left(s)
        second = right(s)
        if first.__class__ is str and second.__class__ is str:
            s[0].charge_text(min(len(first), len(second)))
        return compare(first, second)

    return compared


def _add(linker: Linker, node: Call) -> Run:
    left, right = linker.link(node.args[0]), linker.link(node.args[1])
    overloads = linker.library.functions["+"]
    linker.cost += max([each.cost for each in overloads])

    def add(s: Frame) -> Value:
        first = left(s)
        second = right(s)
        kind = first.__class__
        if kind is second.__class__:
            if kind is str:
                return add_text(s[0], first, second)
            if kind is list:
                return add_list(s[0], first, second)
        return general([s[0], first, second])

    general = link_dispatch("+", overloads, (lambda f: f[1], lambda f: f[2]))
    return add


def _index(linker: Linker, node: Call) -> Run:
    linker.cost += 12
    container, key = linker.link(node.args[0]), linker.link(node.args[1])
    literal = literal_of(node.args[1])
    if type(literal) is str:

        def by_name(s: Frame) -> Value:
            value = container(s)
            if value.__class__ is dict:
                item = value.get(literal, ABSENT)
                if item is not ABSENT:
                    return item
            return _indexed(value, literal)

        return by_name

    def by_key(s: Frame) -> Value:
        value = container(s)
        return value if value is NO_VALUE else _indexed(value, key(s))

    return by_key


def _indexed(container: Value, key: Value) -> Value:
    if container.__class__ is Optional:
        item = found_in(container, key)
        return NO_VALUE if item is ABSENT else Optional(item)
    if isinstance(container, Record) and type(key) is str:
        return container.field(key)
    return index(container, key)


def _text_test(name: str, method: Callable[[str, str], bool]) -> Any:
    """Return the linker of a string test whose argument is a literal."""

    def link(linker: Linker, node: Call) -> Run | None:
        part = literal_of(node.args[0])
        if type(part) is not str or node.target is None:
            return None
        run = linker.link(node.target)
        linker.cost += len(part) // 10

        def test(s: Frame) -> bool:
            value = run(s)
            if value.__class__ is str:
                return method(value, part)
            raise no_overload(name, value, part)

        return test

    return link


def _matches(linker: Linker, node: Call) -> Run | None:
    pattern = literal_of(node.args[0])
    if type(pattern) is not str or node.target is None:
        return None
    run = linker.link(node.target)
    try:
        compiled = compile_regex(pattern)
    except CelFailed:
        return None
    linker.cost += SEARCH_COST

    def test(s: Frame) -> bool:
        value = run(s)
        if value.__class__ is not str:
            raise no_overload("matches", value, pattern)
        charge_regex(s[0], value, compiled)
        return compiled.search(value) is not None

    return test


def _size(linker: Linker, node: Call) -> Run:
    run = linker.link(node.args[0] if node.target is None else node.target)

    def size(s: Frame) -> int:
        value = run(s)
        kind: type = value.__class__
        if kind in _SIZED:
            return len(value)
        raise no_overload("size", value)

    return size


_SIZED: Final = frozenset({str, bytes, list, dict})
_OPERATORS: Final[dict[str, Any]] = {
    "&&": _and,
    "||": _or,
    "!_": _not,
    "?:": _conditional,
    "==": _equals,
    "!=": _differs,
    "in": _in,
    "<": _compared,
    "<=": _compared,
    ">": _compared,
    ">=": _compared,
    "+": _add,
    "_[_]": _index,
    "_[?_]": link_optional_index,
    "size": _size,
}
_MEMBERS: Final[dict[tuple[str, int], Any]] = {
    ("orValue", 1): link_or_value,
    ("or", 1): link_or_optional,
    ("hasValue", 0): link_has_value,
    ("startsWith", 1): _text_test("startsWith", str.startswith),
    ("endsWith", 1): _text_test("endsWith", str.endswith),
    ("matches", 1): _matches,
    ("size", 0): _size,
}
