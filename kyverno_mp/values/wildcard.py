"""Match strings against Kyverno's wildcard patterns.

Room: values. Takes: a pattern and a string. Gives: the match, as a plain function and
as a closure compiled from the pattern.
Next: expr/pattern, program/matching/match, compiler/rules/match.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 0.1.
"""

from collections.abc import Callable

import re2

from kyverno_mp.values.effort import (
    CHARACTERS_PER_STEP,
    TEXT_LIGHT_MAX,
    Charge,
    search_steps,
    uncharged,
)

_RE2_PATTERN_LENGTH_MAX = 1000
"""Longer patterns with ``?`` are matched step by step, because they are too large for
RE2."""
_PORTION = 4096
_BITS_PER_STEP = 16384
"""The number of characters read, and of bits shifted, per step."""


def contains_wildcard(text: str) -> bool:
    """Return whether ``text`` contains ``*`` or ``?``."""
    return "*" in text or "?" in text


def matches(pattern: str, text: str, charge: Charge = uncharged) -> bool:
    """Return whether all of ``text`` matches; ``*`` is any run, ``?`` exactly one rune.

    Cost: linear without ``?``, otherwise at worst the product of the lengths in bits;
    ``charge`` is called with the steps of long strings before the match.
    """
    if "*" not in pattern and "?" not in pattern:
        if len(text) > TEXT_LIGHT_MAX and len(text) == len(pattern):
            charge(len(text) // CHARACTERS_PER_STEP)
        return pattern == text
    if len(pattern) + len(text) > TEXT_LIGHT_MAX:
        charge((len(pattern) + len(text)) // CHARACTERS_PER_STEP)
        charge(pattern.count("*") + search_steps(pattern, text))
    first = pattern.find("*")
    if first < 0:
        return len(pattern) == len(text) and _find(pattern, text, 0, charge) == 0
    last = pattern.rfind("*")
    head, tail = pattern[:first], pattern[last + 1 :]
    end = len(text) - len(tail)
    position = first
    if (
        end < position
        or _find(head, text[:position], 0, charge) != 0
        or _find(tail, text[end:], 0, charge) != 0
    ):
        return False
    inner = text[:end]
    while first < last:
        following = pattern.find("*", first + 1)
        piece = pattern[first + 1 : following]
        found = _find(piece, inner, position, charge)
        if found < 0:
            return False
        position = found + len(piece)
        first = following
    return True


def _find(piece: str, text: str, start: int, charge: Charge) -> int:
    """Return the first position of a piece without stars from ``start`` on, or -1.

    With ``?``, the search keeps one bit per prefix of the piece that can still match.
    """
    if "?" not in piece:
        return text.find(piece, start)
    if len(text) > TEXT_LIGHT_MAX:
        charge(len(piece))
    shift_steps = _PORTION * (1 + len(piece) // _BITS_PER_STEP) // 2
    masks: dict[str, int] = {}
    any_rune = 0
    for at, char in enumerate(piece):
        if char == "?":
            any_rune |= 1 << at
        else:
            masks[char] = masks.get(char, 0) | 1 << at
    last, state = 1 << len(piece) - 1, 0
    for at in range(start, len(text)):
        if (at - start) % _PORTION == TEXT_LIGHT_MAX:
            charge(shift_steps)
        state = (state << 1 | 1) & (masks.get(text[at], 0) | any_rune)
        if state & last:
            return at - len(piece) + 1
    return -1


def compile_wildcard(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern to a matcher; common shapes compile to one string method.

    Shape: ``compile_wildcard("nginx:*")("nginx:1")`` is True.
    """
    if "?" in pattern:
        return _compile_with_question(pattern)
    if "*" not in pattern:
        return pattern.__eq__
    parts = pattern.split("*")
    head, tail = parts[0], parts[-1]
    middle = [part for part in parts[1:-1] if part]
    if middle:
        return _compile_pieces(head, middle, tail)
    if not tail:
        return _starts_with(head) if head else _always
    if not head:
        return lambda text: text.endswith(tail)
    least = len(head) + len(tail)
    return lambda text: (
        len(text) >= least and text.startswith(head) and text.endswith(tail)
    )


def _always(text: str) -> bool:  # noqa: ARG001 - the shape of every matcher
    return True


def _starts_with(head: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(head)


def _compile_pieces(head: str, middle: list[str], tail: str) -> Callable[[str], bool]:
    if not head and not tail and len(middle) == 1:
        only = middle[0]
        return lambda text: only in text
    start = len(head)

    def match_pieces(text: str) -> bool:
        end = len(text) - len(tail)
        if end < start or not (text.startswith(head) and text.endswith(tail)):
            return False
        position = start
        for piece in middle:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True

    return match_pieces


def _compile_with_question(pattern: str) -> Callable[[str], bool]:
    if len(pattern) > _RE2_PATTERN_LENGTH_MAX:
        return lambda text: matches(pattern, text)
    regex = "".join(
        ".*" if char == "*" else "." if char == "?" else re2.escape(char)
        for char in pattern
    )
    fullmatch = re2.compile("(?s)" + regex).fullmatch
    return lambda text: fullmatch(text) is not None
