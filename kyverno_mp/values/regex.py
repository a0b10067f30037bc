"""Compile regular expressions with RE2, and measure the work of compiling.

Room: values. Takes: patterns of up to REGEX_CHARACTERS_MAX. Gives: Regex.
Next: the regex functions of JMESPath and CEL, which format the errors and charge.
May touch: a bounded cache of compiled expressions.
Source: measured on RE2 with its default of 8 MiB a program.

The length of a pattern does not show the work of compiling it: a class of Unicode
letters has three characters and 400 instructions, and ``a{1000}`` has a thousand. So
the number of instructions is charged. Each caller is charged at its first use of a
pattern, even if another compiled it before, because that order is random.
"""

from typing import Any, Final, NamedTuple

import re2

_KEPT_INSTRUCTIONS_MAX: Final = 4_000_000
"""In all cached expressions together, 16 bytes each; one expression may have
500,000."""
_KEPT_MAX: Final = 1024
_TOO_LARGE: Final = b"pattern too large"
_GIVEN_UP_INSTRUCTIONS: Final = 350_000
"""The maximum that RE2 has compiled of a pattern when it finds that it is too large."""
_SQUARE_PER_INSTRUCTION: Final = 1000
"""Simplifying a long row of ``a?`` takes time quadratic in its length."""


class Regex(NamedTuple):
    """A compiled expression, or the error of the pattern.

    ``instructions``: the work of compiling it; each stands for half a microsecond.
    """

    compiled: Any
    error: str
    instructions: int


class _Memo:
    """Compiled expressions by pattern; emptied when there are too many."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Regex] = {}
        self._instructions = 0

    def find(self, key: tuple[str, bool]) -> Regex | None:
        """Return the cached expression, if any."""
        return self._known.get(key)

    def keep(self, key: tuple[str, bool], regex: Regex) -> None:
        """Add an expression; if the cache is full, empty it first.

        Concurrent threads may count one twice, or not at all; emptying the cache
        corrects this.
        """
        self._instructions += regex.instructions
        full = self._instructions > _KEPT_INSTRUCTIONS_MAX
        if full or len(self._known) >= _KEPT_MAX:
            self._known.clear()
            self._instructions = regex.instructions
        self._known[key] = regex


_memo: Final = _Memo()


def compile_regex(pattern: str, *, captures: bool) -> Regex:
    """Compile, or return the cached expression.

    Without ``captures``, groups capture nothing, which is enough for a test.
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
