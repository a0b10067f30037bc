"""Split a text pattern into alternatives, terms and operators.

Room: expr.pattern. Takes: the text of a leaf. Gives: the alternatives of nodes.Leaf.
Next: parse, leaf.
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


def parse_term(term: str) -> Term:
    """Parse one comparison or range."""
    if len(term.encode("utf-8", "replace")) < _OPERATOR_LENGTH_LEAST:
        return _atom("", term)
    for prefix in _PREFIXES:
        if term.startswith(prefix):
            return _atom(prefix, term[len(prefix) :])
    if "-" not in term:
        return _atom("", term)  # PERF: no range, which RE2 finds out slowly
    if match := _NOT_IN_RANGE.fullmatch(term):
        low, high = match.groups()
        return Range(_atom("<", low), _atom(">", high), outside=True)
    if match := _IN_RANGE.fullmatch(term):
        low, high = match.groups()
        return Range(_atom(">=", low), _atom("<=", high))
    return _atom("", term)


def _atom(operator: str, operand: str) -> Atom:
    trimmed = operand.strip(GO_SPACE)
    return Atom(
        operator, trimmed, parse_duration(trimmed), parse_quantity(trimmed) is not None
    )
