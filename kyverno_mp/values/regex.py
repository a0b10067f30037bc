"""Compile regular expressions on RE2, and tell how much work that is.

Room: values. Takes: patterns of up to REGEX_CHARACTERS_MAX. Gives: Regex.
Next: the regex functions of JMESPath and CEL, which word the errors and charge.
May touch: a bounded memo of compiled expressions.
Source: measured on RE2 with its default of 8 MiB a program.

What compiling takes is not told by a pattern's length: a class of Unicode's letters is
three characters and 400 instructions, and ``a{1000}`` has a thousand. So it is charged
by what it came to, and since who asks first is chance, by everyone who asks for a
pattern for the first time.
"""

from typing import Any, Final, NamedTuple

import re2

_KEPT_INSTRUCTIONS_MAX: Final = 4_000_000
"""Of all compiled expressions that are kept, 16 bytes each: one may have 500,000."""
_KEPT_MAX: Final = 1024
_TOO_LARGE: Final = b"pattern too large"
_GIVEN_UP_INSTRUCTIONS: Final = 350_000
"""What RE2 has made at most of a pattern when it finds that it is too large."""
_SQUARE_PER_INSTRUCTION: Final = 1000
"""A long row of ``a?`` takes the square of its length to simplify."""


class Regex(NamedTuple):
    """A compiled expression, or what is wrong with the pattern.

    ``instructions``: what compiling it comes to; each stands for half a microsecond.
    """

    compiled: Any
    error: str
    instructions: int


class _Memo:
    """Compiled expressions by pattern; forgets all when they become too many."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Regex] = {}
        self._instructions = 0

    def find(self, key: tuple[str, bool]) -> Regex | None:
        """Return what is known."""
        return self._known.get(key)

    def keep(self, key: tuple[str, bool], regex: Regex) -> None:
        """Remember one, whatever has to be forgotten for it.

        Threads that do so at once may count one twice, or not at all, which the next
        time that all are forgotten sets right.
        """
        self._instructions += regex.instructions
        full = self._instructions > _KEPT_INSTRUCTIONS_MAX
        if full or len(self._known) >= _KEPT_MAX:
            self._known.clear()
            self._instructions = regex.instructions
        self._known[key] = regex


_memo: Final = _Memo()


def compile_regex(pattern: str, *, captures: bool) -> Regex:
    """Compile, or take it from the memo.

    Without ``captures`` groups only bind, which is enough to tell whether it matches.
    """
    key = pattern, captures
    known = _memo.find(key)
    if known is None:
        known = _compile(pattern, captures=captures)
        _memo.keep(key, known)
    return known


def _compile(pattern: str, *, captures: bool) -> Regex:
    square = len(pattern) * len(pattern) // _SQUARE_PER_INSTRUCTION
    try:
        compiled = re2.compile(pattern, options=_options(captures=captures))
    except re2.error as error:
        raw = error.args[0] if error.args else b""
        text = raw.decode("utf-8", "replace") if type(raw) is bytes else str(raw)
        is_large = type(raw) is bytes and raw.startswith(_TOO_LARGE)
        made = _GIVEN_UP_INSTRUCTIONS if is_large else 0
        return Regex(None, text, made + square)
    return Regex(compiled, "", compiled.programsize + square)


def _options(*, captures: bool) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not captures
    return options
