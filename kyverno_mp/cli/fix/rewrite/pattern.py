"""Rewrite a pattern as a CEL expression.

Room: cli. Takes: a parsed pattern. Gives: an expression that is true if the pattern
passes, and false if it fails. Next: policy.py.
Source: docs/behaviour/engine 5. Anchors that skip rules, ranges and durations raise
NotRewritten with their name.
"""

import re
from itertools import count
from typing import Final

from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    absent,
    all_of,
    any_of,
    has,
    like,
    literal,
    negated,
)
from kyverno_mp.cli.fix.rewrite.typed import Typed, name_for
from kyverno_mp.expr.pattern.leaf import compile_leaf
from kyverno_mp.expr.pattern.nodes import (
    EQUALITY,
    NEGATION,
    PLAIN,
    Atom,
    Leaf,
    ListPattern,
    MapPattern,
    Node,
    PatternEntry,
    Term,
)
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import contains_wildcard

_ANCHORS: Final = {"": "(key)", "^": "^(key)", "<": "<(key)"}
_ORDER: Final = {">": ">", ">=": ">=", "<": "<", "<=": "<="}
_PRESENT: Final = "*"
_SCALAR_KINDS: Final = frozenset({"string", "numeric", "boolean", "untyped"})
_DURATION: Final = "([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_SHORT: Final = 30
"""Limit for tests written twice: for a value and for the elements of a list."""


def pattern_expression(pattern: Json, root: Typed) -> str:
    """Return an expression that tests the object ``root``. Raises: NotRewritten.

    Fields of a known type need no tests of their type, and some are always present.
    """
    node = parse_pattern(pattern).root
    if type(node) is not MapPattern:
        raise NotRewritten("a pattern that is not a map")
    return Writer().entries(node, root)


class Writer:
    """Writer of one pattern's expression; each list has a separate variable."""

    def __init__(self) -> None:
        self.numbers = count(1)

    def entries(self, node: MapPattern, holder: Typed) -> str:
        """Return an expression that tests a map against the pattern's map."""
        write = self._of_block if node.block else self.entry
        return all_of(write(one, holder) for one in (*node.first, *node.then))

    def _of_block(self, entry: PatternEntry, holder: Typed) -> str:
        """Return the test of a label or an annotation.

        A key with wildcards stands for the first key that matches, which is any of
        them, unless the pattern forbids them all.
        """
        is_text = type(entry.value) is Leaf and type(entry.value.value) is str
        if not contains_wildcard(entry.key) and is_text:
            return self.entry(entry, holder)
        if entry.kind != NEGATION or not is_text:
            raise NotRewritten("wildcards in names of labels or annotations")
        return f"!{holder.plain}.exists(key, {like('key', entry.key)})"

    def entry(self, entry: PatternEntry, holder: Typed) -> str:
        """Return the test of a key and its value."""
        key, value = entry.key, entry.value
        place = holder.field(key)
        is_present = "true" if not place.maybe else has(holder.plain, key)
        if entry.kind == NEGATION:
            return absent(holder.plain, key)
        if entry.kind not in (EQUALITY, PLAIN):
            raise NotRewritten(f"anchor {_ANCHORS.get(entry.kind, entry.text)}")
        if key.startswith("+("):
            raise NotRewritten("anchor +(key)")
        # Whatever is tested below exists.
        place = place._replace(maybe="")
        is_star = type(value) is Leaf and value.value == _PRESENT
        if is_star and entry.kind == PLAIN:
            is_given = "true" if place.kind else f"{place.plain} != null"
            return all_of((is_present, is_given))
        inner = self.value(value, place)
        is_optional = entry.kind == EQUALITY or (
            type(value) is Leaf and compile_leaf(value)(None)
        )
        if is_optional and is_present != "true":
            return any_of((absent(holder.plain, key), inner))
        return all_of((is_present, inner))

    def value(self, node: Node, place: Typed) -> str:
        """Return the test of a value that exists."""
        if type(node) is MapPattern:
            entries = self.entries(node, place)
            if place.kind == "map":
                return entries
            return all_of((f"type({place.plain}) == map", entries))
        if type(node) is ListPattern:
            return self._list(node, place)
        assert isinstance(node, Leaf)
        return self._leaf(node, place)

    def _list(self, node: ListPattern, place: Typed) -> str:
        if not node.items:
            raise NotRewritten("an empty list in a pattern")
        first = node.items[0]
        if type(first) is ListPattern:
            raise NotRewritten("a list in a list of a pattern")
        name = name_for(place.plain, f"x{next(self.numbers)}")
        element = place.element(name)
        if type(first) is MapPattern:
            inner = self.value(first, element)
        else:
            assert isinstance(first, Leaf)
            inner = _scalar(first, name, element.kind)
        every = f"{place.plain}.all({name}, {inner})"
        return (
            every if place.kind == "list" else f"type({place.plain}) == list && {every}"
        )

    def _leaf(self, leaf: Leaf, place: Typed) -> str:
        plain = place.plain
        name = f"x{next(self.numbers)}"
        if place.kind in _SCALAR_KINDS:
            return _scalar(leaf, plain, place.kind)
        if place.kind == "list":
            element = place.element(name)
            return f"{plain}.all({name}, {_scalar(leaf, name, element.kind)})"
        one, other = _scalar(leaf, plain), _scalar(leaf, name)
        return (
            f"type({plain}) == list ? {plain}.all({name}, {other}) : {one}"
            if len(other) < _SHORT
            else f"(type({plain}) == list ? {plain} : [{plain}]).all({name}, {other})"
        )


def _null(place: str, kind: str) -> str:
    empty = {"string": "''", "numeric": "0", "boolean": "false"}.get(kind)
    if empty is not None:
        return f"{place} == {empty}"
    return f"{place} == null || {place} == 0 || {place} == '' || {place} == false"


def _scalar(leaf: Leaf, place: str, kind: str = "") -> str:
    """Return the test of a scalar; ``kind``: its type, if it is known."""
    value = leaf.value
    if value is None:
        return _null(place, kind)
    if kind == "boolean" and value in (True, False, "true", "false"):
        return place if value in (True, "true") else f"!{place}"
    if kind == "numeric" and type(value) is int:
        return f"{place} == {value}"
    if type(value) is bool:
        return f"{place} == {'true' if value else 'false'}"
    if type(value) is int:
        return _integer(value, place)
    if type(value) is not str:
        raise NotRewritten(f"the number {value} in a pattern")
    clauses = [
        all_of(_term(term, place, kind) for term in terms)
        for terms in leaf.alternatives
    ]
    if _is_more_than_text(leaf) and kind in ("", "string", "untyped"):
        clauses.insert(0, f"{place} == {literal(value)}")
    found = any_of(clauses)
    accepts_null = not kind and compile_leaf(leaf)(None)
    return any_of((f"{place} == null", found)) if accepts_null else found


def _is_more_than_text(leaf: Leaf) -> bool:
    """Return whether a value equal to the whole text must be allowed separately."""
    (first, *others), *more = leaf.alternatives
    is_one = not others and not more
    return not (is_one and isinstance(first, Atom) and not first.operator)


def _integer(value: int, place: str) -> str:
    sign = "-" if value < 0 else "[+-]?" if value == 0 else "[+]?"
    text = literal(f"^{sign}0*{abs(value)}$")
    return any_of(
        (f"{place} == {value}", f"type({place}) == string && {place}.matches({text})")
    )


def _term(term: Term, place: str, kind: str) -> str:
    clause = _tested(term, place, kind)
    return clause if kind else all_of((*_scalars(place), clause))


def _tested(term: Term, place: str, kind: str) -> str:
    if not isinstance(term, Atom):
        ends = (_tested(end, place, kind) for end in (term.low, term.high))
        return any_of(ends) if term.outside else all_of(ends)
    if term.duration is not None and term.text != "0":
        raise NotRewritten(f"the duration {term.text} in a pattern")
    if term.operator in _ORDER:
        if kind == "numeric" and _INTEGER.fullmatch(term.text):
            return f"{place} {_ORDER[term.operator]} {int(term.text)}"
        if not term.quantity:
            raise NotRewritten(f"{term.operator}{term.text} in a pattern")
        test = f"{_compared(term, place)} {_ORDER[term.operator]} 0"
        is_other = f"type({place}) != bool"
        found = all_of((_is_amount(place), test))
        if term.duration is not None:
            found = any_of((found, _signed(place, term.operator)))
        return found if kind else all_of((is_other, found))
    text = place if kind == "string" else f"string({place})"
    if term.quantity:
        other = _same(term, text)
        if term.duration is not None:
            other = any_of((other, _signed(place, "")))
        same = f"{_is_amount(place)} ? {_compared(term, place)} == 0 : {other}"
    else:
        same = _same(term, text)
    if term.operator == "!":
        same = negated(same)
    return same


def _signed(place: str, operator: str) -> str:
    """Return an expression that compares a duration with the text "0".

    KYVERNO: this text is also a duration. A text that is a duration and an amount, such
    as "1m", has the same sign as both.
    """
    text = f"string({place})"
    positive, negative = (
        f"{text}.matches('^{sign}({_DURATION})+$')" for sign in ("[+]?", "-")
    )
    is_zero = f"!{text}.matches('[1-9]')"
    if operator in ("<", ">"):
        return all_of((positive if operator == ">" else negative, is_zero[1:]))
    if not operator:
        return all_of((any_of((positive, negative)), is_zero))
    fits, zero = (positive, negative) if operator == ">=" else (negative, positive)
    return any_of((fits, all_of((zero, is_zero))))


def _same(term: Atom, text: str) -> str:
    if contains_wildcard(term.text) and not term.text.strip("*"):
        return "true"
    return like(text, term.text)


def _compared(term: Atom, place: str) -> str:
    return f"quantity(string({place})).compareTo(quantity({literal(term.text)}))"


def _is_amount(place: str) -> str:
    return f"isQuantity(string({place}))"


def _scalars(place: str) -> tuple[str, ...]:
    """Return clauses that are true for strings, numbers and booleans."""
    return f"{place} != null", f"type({place}) != map", f"type({place}) != list"
