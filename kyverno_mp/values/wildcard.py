"""Match texts against Kyverno's wildcard patterns.

Room: values. Takes: a pattern and a text. Gives: the matcher W of the specification,
once as a plain function and once as a closure made from the pattern.
Next: expr/pattern, program/match, compiler/match.
May touch: nothing outside its arguments.
Source: spec/engine.md 0.1.
"""

from collections.abc import Callable

import re2

_RE2_PATTERN_LENGTH_MAX = 1000
"""Longer patterns with ``?`` are matched step by step: RE2 would refuse the size."""
_PRODUCT_MAX = 1 << 16
"""Length of pattern times text that may be compared rune by rune: some 10 ms."""


def contains_wildcard(text: str) -> bool:
    """Tell whether ``text`` has a ``*`` or ``?``."""
    return "*" in text or "?" in text


def matches(pattern: str, text: str) -> bool:
    """Tell whether all of ``text`` matches: ``*`` any run, ``?`` exactly one rune.

    Cost: two indices walk on, going back to the last ``*`` only; at worst the product
    of the lengths, never exponential. Where that is much, ``_find`` does it in bulk.
    """
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    if len(pattern) * len(text) > _PRODUCT_MAX:
        return _match_long(pattern, text)
    at = position = mark = 0
    star = -1
    pattern_length, text_length = len(pattern), len(text)
    while position < text_length:
        wanted = pattern[at] if at < pattern_length else ""
        if wanted == "*":
            star, mark = at, position
            at += 1
        elif wanted and wanted in ("?", text[position]):
            at += 1
            position += 1
        elif star >= 0:
            mark += 1
            at, position = star + 1, mark
        else:
            return False
    return not pattern[at:].strip("*")


def _match_long(pattern: str, text: str) -> bool:
    """Match by pieces between stars, each found as early as it can be."""
    head, *rest = pattern.split("*")
    if not rest:
        return len(head) == len(text) and _find(head, text, 0) == 0
    *middle, tail = rest
    end = len(text) - len(tail)
    position = len(head)
    if (
        end < position
        or _find(head, text[:position], 0) != 0
        or _find(tail, text, end) != end
    ):
        return False
    inner = text[:end]
    for piece in middle:
        found = _find(piece, inner, position)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def _find(piece: str, text: str, start: int) -> int:
    """Return where a piece without stars first begins from ``start`` on, or -1.

    With ``?``: a bit for each of the piece's beginnings that may still become it.
    """
    if "?" not in piece:
        return text.find(piece, start)
    masks: dict[str, int] = {}
    any_rune = 0
    for at, char in enumerate(piece):
        if char == "?":
            any_rune |= 1 << at
        else:
            masks[char] = masks.get(char, 0) | 1 << at
    last, state = 1 << len(piece) - 1, 0
    for at in range(start, len(text)):
        state = (state << 1 | 1) & (masks.get(text[at], 0) | any_rune)
        if state & last:
            return at - len(piece) + 1
    return -1


def compile_wildcard(pattern: str) -> Callable[[str], bool]:
    """Make the matcher of one pattern; common shapes become one string method.

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
