"""Match strings against Kyverno's wildcard patterns.

Room: values. Takes: a pattern and a string. Gives: the match, as a plain function and
as a closure compiled from the pattern.
Next: expr/pattern, program/matching/match, compiler/rules/match.
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


def contains_wildcard(pattern: str) -> bool:
    """Return whether ``pattern`` contains ``*`` or ``?``."""
    return "*" in pattern or "?" in pattern


def matches(pattern: str, string: str, charge: Charge = uncharged) -> bool:
    """Return whether all of ``string`` matches; ``*`` is any run, ``?`` is one rune.

    Cost: linear without ``?``, otherwise at worst the product of the lengths in bits;
    ``charge`` is called with the steps of long strings before the match.
    """
    if "*" not in pattern and "?" not in pattern:
        if len(string) > TEXT_LIGHT_MAX and len(string) == len(pattern):
            charge(len(string) // CHARACTERS_PER_STEP)
        return pattern == string
    if len(pattern) + len(string) > TEXT_LIGHT_MAX:
        charge((len(pattern) + len(string)) // CHARACTERS_PER_STEP)
        charge(pattern.count("*") + search_steps(pattern, string))
    first = pattern.find("*")
    if first < 0:
        return len(pattern) == len(string) and _find(pattern, string, 0, charge) == 0
    last = pattern.rfind("*")
    head, tail = pattern[:first], pattern[last + 1 :]
    end = len(string) - len(tail)
    position = first
    if (
        end < position
        or _find(head, string[:position], 0, charge) != 0
        or _find(tail, string[end:], 0, charge) != 0
    ):
        return False
    inner = string[:end]
    while first < last:
        following = pattern.find("*", first + 1)
        piece = pattern[first + 1 : following]
        match_start = _find(piece, inner, position, charge)
        if match_start < 0:
            return False
        position = match_start + len(piece)
        first = following
    return True


def _find(piece: str, string: str, start: int, charge: Charge) -> int:
    """Return the first position of a piece without stars from ``start`` on, or -1.

    With ``?``, the search keeps one bit per prefix of the piece that can still match.
    """
    if "?" not in piece:
        return string.find(piece, start)
    if len(string) > TEXT_LIGHT_MAX:
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
    for at in range(start, len(string)):
        if (at - start) % _PORTION == TEXT_LIGHT_MAX:
            charge(shift_steps)
        state = (state << 1 | 1) & (masks.get(string[at], 0) | any_rune)
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
        return lambda string: string.endswith(tail)
    least = len(head) + len(tail)
    return lambda string: (
        len(string) >= least and string.startswith(head) and string.endswith(tail)
    )


def _always(string: str) -> bool:  # noqa: ARG001 - the shape of every matcher
    return True


def _starts_with(head: str) -> Callable[[str], bool]:
    return lambda string: string.startswith(head)


def _compile_pieces(head: str, middle: list[str], tail: str) -> Callable[[str], bool]:
    if not head and not tail and len(middle) == 1:
        only = middle[0]
        return lambda string: only in string
    start = len(head)

    def match_pieces(string: str) -> bool:
        end = len(string) - len(tail)
        if end < start or not (string.startswith(head) and string.endswith(tail)):
            return False
        position = start
        for piece in middle:
            match_start = string.find(piece, position, end)
            if match_start < 0:
                return False
            position = match_start + len(piece)
        return True

    return match_pieces


def _compile_with_question(pattern: str) -> Callable[[str], bool]:
    if len(pattern) > _RE2_PATTERN_LENGTH_MAX:
        return lambda string: matches(pattern, string)
    regex = "".join(
        ".*" if char == "*" else "." if char == "?" else re2.escape(char)
        for char in pattern
    )
    fullmatch = re2.compile("(?s)" + regex).fullmatch
    return lambda string: fullmatch(string) is not None
