"""Compile one comparison of a text pattern, as a duration, a quantity or text.

Room: expr.pattern. Takes: nodes.Atom and nodes.Range. Gives: a Comparer with one test
per type of value. Next: leaf.
Source: docs/behaviour/engine 5.2-5.4.
"""

import operator as python_operator
from collections.abc import Callable
from typing import Final, NamedTuple

from kyverno_mp.expr.pattern.nodes import Atom, Range, Term
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.go.gotext import float_e, float_f
from kyverno_mp.values.kubernetes.quantity import Quantity, parse_quantity
from kyverno_mp.values.wildcard import compile_wildcard

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "": python_operator.eq,
    "!": python_operator.ne,
    ">": python_operator.gt,
    "<": python_operator.lt,
    ">=": python_operator.ge,
    "<=": python_operator.le,
}
_EXPONENT_MAX: Final = 30
"""Above this exponent, quantities are compared without expanding their digits."""


class Comparer(NamedTuple):
    """The tests of one term; the results for null, true and false are constants.

    KYVERNO: 5.3 - null is the text "0" for durations and quantities, but satisfies no
    text comparison, not even ``!``.
    """

    text: Callable[[str], bool]
    integer: Callable[[int], bool]
    floating: Callable[[float], bool]
    null: bool
    true: bool
    false: bool


def compile_term(term: Term) -> Comparer:
    """Compile the tests of one comparison or range."""
    if type(term) is Range:
        return _compile_range(term)
    assert type(term) is Atom
    as_text = _compile_string(term)
    quantity = parse_quantity(term.text) if term.quantity else None
    as_string = _text_test(term, quantity, as_text)
    zero = term.duration is not None or quantity is not None
    return Comparer(
        text=as_string,
        integer=_integer_test(term, quantity, as_text),
        floating=_floating_test(term, quantity, as_text),
        null=zero and as_string("0"),
        true=as_text("true"),
        false=as_text("false"),
    )


def compile_text_test(term: Term) -> Callable[[str], bool]:
    """Compile the test of strings alone: the ``text`` of ``compile_term``."""
    if type(term) is Range:
        low, high = compile_text_test(term.low), compile_text_test(term.high)
        if term.outside:
            return lambda value: low(value) or high(value)
        return lambda value: low(value) and high(value)
    assert type(term) is Atom
    quantity = parse_quantity(term.text) if term.quantity else None
    return _text_test(term, quantity, _compile_string(term))


def _compile_range(term: Range) -> Comparer:
    low, high = compile_term(term.low), compile_term(term.high)
    if term.outside:
        return Comparer(
            lambda value: low.text(value) or high.text(value),
            lambda value: low.integer(value) or high.integer(value),
            lambda value: low.floating(value) or high.floating(value),
            low.null or high.null,
            low.true or high.true,
            low.false or high.false,
        )
    return Comparer(
        lambda value: low.text(value) and high.text(value),
        lambda value: low.integer(value) and high.integer(value),
        lambda value: low.floating(value) and high.floating(value),
        low.null and high.null,
        low.true and high.true,
        low.false and high.false,
    )


def _compile_string(atom: Atom) -> Callable[[str], bool]:
    if atom.operator not in ("", "!"):
        return lambda _string: False
    matches = compile_wildcard(atom.text)
    if atom.operator:
        return lambda string: not matches(string)
    return matches


def _text_test(
    atom: Atom, quantity: Quantity | None, as_text: Callable[[str], bool]
) -> Callable[[str], bool]:
    duration = atom.duration
    if duration is None and quantity is None:
        return as_text
    compare = _COMPARISONS[atom.operator]

    def test(string: str) -> bool:
        if duration is not None:
            parsed = parse_duration(string)
            if parsed is not None:
                return compare(parsed, duration)
        if quantity is not None:
            amount = parse_quantity(string)
            if amount is not None:
                return compare(amount.compare(quantity), 0)
        return as_text(string)

    return test


def _integer_test(
    atom: Atom, quantity: Quantity | None, as_text: Callable[[str], bool]
) -> Callable[[int], bool]:
    """Compare numbers without printing them if the result is the same.

    An int is a duration only if it is 0: every other number lacks a unit.
    """
    duration = atom.duration
    if quantity is None:
        if duration is None:
            return lambda value: as_text(str(value))
        general = _text_test(atom, quantity, as_text)
        return lambda value: general(str(value))
    compare = _COMPARISONS[atom.operator]
    numeric = _compare_amount(compare, quantity)
    if duration is None:
        return numeric
    when_zero = compare(0, duration)
    return lambda value: numeric(value) if value else when_zero


def _compare_amount(
    compare: Callable[[int, int], bool], quantity: Quantity
) -> Callable[[int], bool]:
    unscaled, exponent = quantity.unscaled, quantity.exponent
    if not -_EXPONENT_MAX <= exponent <= _EXPONENT_MAX:
        return lambda value: compare(
            Quantity(value, 0, "DecimalSI").compare(quantity), 0
        )
    if exponent >= 0:
        bound = unscaled * 10**exponent
        return lambda value: compare(value, bound)
    scale = 10**-exponent
    if unscaled % scale == 0:
        bound = unscaled // scale
        return lambda value: compare(value, bound)
    return lambda value: compare(value * scale, unscaled)


def _floating_test(
    atom: Atom, quantity: Quantity | None, as_text: Callable[[str], bool]
) -> Callable[[float], bool]:
    """Compare as a quantity with six decimals, or as text in the ``E`` format.

    A float is never a duration: its text has a decimal point and no unit.
    """
    if quantity is None:
        return lambda value: as_text(float_e(value))
    compare = _COMPARISONS[atom.operator]

    def test(value: float) -> bool:
        amount = parse_quantity(float_f(value))
        if amount is None:
            return as_text(float_e(value))
        return compare(amount.compare(quantity), 0)

    return test
