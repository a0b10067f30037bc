"""Translate glob patterns of image references into regular expressions.

Room: values. Takes: a pattern. Gives: ``glob_regex``, ``Glob``. Next:
compiler/cel_kinds/image_validating_policy.py, program/image_policies/references.py.
Source: gobwas/glob without separators, which Kyverno uses for matchImageReferences.
"""

from typing import Final

import re2

_LENGTH_MAX: Final = 4_096
_DEPTH_MAX: Final = 16
_PLAIN: Final = {"*": ".*", "?": "."}
_GROUP: Final = {"{": ("(?:", 1), "}": (")", -1), ",": ("|", 0)}
"""Characters of alternatives -> their regular expression and change of depth."""
_OPTIONS: Final = re2.Options()
_OPTIONS.dot_nl = True
_OPTIONS.log_errors = False


class Glob:
    """A compiled pattern."""

    __slots__ = ("_regex",)

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. Raises: ValueError if the pattern is malformed."""
        regex = glob_regex(pattern)
        try:
            self._regex = re2.compile(regex, _OPTIONS)
        except re2.error as error:
            raise ValueError("the pattern is too large") from error

    def matches(self, string: str) -> bool:
        """Return whether the whole text matches."""
        return self._regex.fullmatch(string) is not None


def glob_regex(pattern: str) -> str:
    """Return the regular expression of a pattern.

    ``*`` and ``**`` match any run of characters, including ``/``; ``?`` matches one
    character; ``[a-z]`` and ``[!abc]`` are classes, ``{a,b}`` alternatives; a backslash
    escapes. Raises: ValueError.
    """
    if len(pattern) > _LENGTH_MAX:
        raise ValueError(f"the pattern has more than {_LENGTH_MAX} characters")
    out: list[str] = []
    at = depth = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char in _PLAIN:
            out.append(_PLAIN[char])
        elif char == "\\":
            out.append(re2.escape(_quoted(pattern, at)))
            at += 1
        elif char == "[":
            part, at = _class(pattern, at)
            out.append(part)
        elif char == "{" or (depth and char in _GROUP):
            depth += _GROUP[char][1]
            out.append(_GROUP[char][0])
        else:
            out.append(re2.escape(char))
        if depth > _DEPTH_MAX:
            raise ValueError("alternatives are nested too deeply")
    if depth:
        raise ValueError("unexpected end of input")
    return "".join(out)


def _quoted(pattern: str, at: int) -> str:
    if at == len(pattern):
        raise ValueError("unexpected end of input")
    return pattern[at]


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Return the class that begins at a position, and the position of its end."""
    end = pattern.find("]", at + 1)
    body = pattern[at:end]
    negated = "^" if body.startswith("!") else ""
    body = body.removeprefix("!")
    if end < 0 or not body:
        raise ValueError("unexpected end of input")
    low, dash, high = body.partition("-")
    if dash:
        if len(low) != 1 or len(high) != 1 or high < low:
            raise ValueError(f"hi character '{high}' should be greater than lo '{low}'")
        return f"[{negated}{re2.escape(low)}-{re2.escape(high)}]", end + 1
    listed = "".join(map(re2.escape, body))
    return f"[{negated}{listed}]", end + 1
