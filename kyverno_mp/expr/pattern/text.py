"""Split a text pattern into alternatives, terms and operators.

Room: expr.pattern. Takes: the text of a leaf. Gives: the alternatives of nodes.Leaf.
Next: parse, leaf.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 5.2, 5.4.
"""

from typing import Final

import re2

from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.expr.pattern.anchors import GO_SPACE
from kyverno_mp.expr.pattern.nodes import Atom, Range, Term
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.kubernetes.quantity import parse_quantity

_END: Final = r"([-|\+]?[0-9]+(?:\.[0-9]+)?[A-Za-z]*)"
_IN_RANGE: Final = re2.compile(f"{_END}-{_END}")
_NOT_IN_RANGE: Final = re2.compile(f"{_END}!-{_END}")
_PREFIXES: Final = (">=", "<=", ">", "<", "!")
_OPERATOR_LENGTH_LEAST: Final = 2
"""An atom with an operator has at least this length: ``>`` alone is a string."""


_TERM_STEPS: Final = 4


def parse_alternatives(pattern: str) -> tuple[tuple[Term, ...], ...]:
    """Split on ``|``, then on ``&``; an alternative matches if all its terms match."""
    spend(_TERM_STEPS * (1 + pattern.count("|") + pattern.count("&")))
    return tuple(
        [
            tuple([parse_term(term.strip(" ")) for term in part.strip(" ").split("&")])
            for part in pattern.split("|")
        ]
    )


def parse_term(text: str) -> Term:
    """Parse one comparison or range."""
    if len(text.encode("utf-8", "replace")) < _OPERATOR_LENGTH_LEAST:
        return _atom("", text)
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            return _atom(prefix, text[len(prefix) :])
    if found := _NOT_IN_RANGE.fullmatch(text):
        low, high = found.groups()
        return Range(_atom("<", low), _atom(">", high), outside=True)
    if found := _IN_RANGE.fullmatch(text):
        low, high = found.groups()
        return Range(_atom(">=", low), _atom("<=", high))
    return _atom("", text)


def _atom(operator: str, text: str) -> Atom:
    trimmed = text.strip(GO_SPACE)
    return Atom(
        operator, trimmed, parse_duration(trimmed), parse_quantity(trimmed) is not None
    )
