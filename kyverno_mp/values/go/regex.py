"""Compile regular expressions with RE2, and measure the work of compiling.

Room: values. Takes: patterns of up to REGEX_CHARACTERS_MAX. Gives: Regex.
Next: the regex functions of JMESPath and CEL, which charge.
May touch: a bounded cache of compiled expressions.
Source: measured on RE2; Go's regexp/syntax (error strings, the escape C).

The length of a pattern does not show the work of compiling it: a class of Unicode
letters has three characters and 400 instructions, and ``a{1000}`` has a thousand. So
the number of instructions is charged. Each caller is charged at its first use of a
pattern, even if another compiled it before, because that order is random.

RE2 compiles in one call, during which no other thread runs: patterns that would take
more than some 50 ms are refused before. What can be foreseen is charged before the
compilation, so that the event loop leaves it to a thread.
"""

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2

from kyverno_mp.limits import (
    HEAVY_STEPS,
    REGEX_CLASSES_MAX,
    REGEX_OPTIONAL_MAX,
    REGEX_PROGRAM_BYTES_MAX,
    REGEX_REPEATS_MAX,
)

_KEPT_INSTRUCTIONS_MAX: Final = 2_000_000
"""In all cached expressions together, 16 bytes each; one expression may have
130,000."""
_KEPT_MAX: Final = 1024
_SHAPES_KEPT_MAX: Final = 64
_TOO_LARGE: Final = b"pattern too large"
_GIVEN_UP_INSTRUCTIONS: Final = 120_000
"""The maximum that RE2 has compiled of a pattern when it finds that it is too large."""
_MESSAGES: Final = {
    "invalid escape sequence": "invalid escape sequence",
    "invalid character class range": "invalid character class range",
    "invalid character class": "invalid character class",
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "unexpected )": "unexpected )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid UTF-8": "invalid UTF-8",
    "invalid named capture group": "invalid named capture",
}
"""RE2's error -> Go's."""
_SQUARE_PER_INSTRUCTION: Final = 180
"""Simplifying a long row of ``a?`` takes time quadratic in its length."""
_CLASS_INSTRUCTIONS: Final = 400
_CLASS_READ: Final = 1000
"""Reading a Unicode class, all cases included, takes half a millisecond."""
_NODE_INSTRUCTIONS: Final = 4
_REPEAT: Final = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_REFUSED: Final = "expression too large"


class Regex(NamedTuple):
    """A compiled expression, or the error of the pattern.

    ``instructions``: the work of compiling it; each stands for half a microsecond.
    """

    compiled: Any
    error: str
    instructions: int

    def error_text(self, pattern: str) -> str:
        """Return the error of the pattern as Go's package regexp prints it."""
        for theirs, ours in _MESSAGES.items():
            if self.error.startswith(theirs):
                part = self.error[len(theirs) :].removeprefix(": ")
                if ours.startswith(("missing closing )", "unexpected")):
                    part = pattern
                if ours.startswith("trailing"):
                    part = ""
                return f"error parsing regexp: {ours}: `{part}`"
        return f"error parsing regexp: {self.error}"


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


class _Shape(NamedTuple):
    """What makes a pattern long to compile, counted in its text.

    ``classes``: Unicode classes; ``optional``: what may be absent, with each copy that
    a repetition makes; ``repeats``: all copies.
    """

    classes: int
    optional: int
    repeats: int

    @property
    def is_too_large(self) -> bool:
        """Whether one call of RE2 would take too long."""
        return (
            self.classes > REGEX_CLASSES_MAX
            or self.optional > REGEX_OPTIONAL_MAX
            or self.repeats > REGEX_REPEATS_MAX
        )

    @property
    def reading(self) -> int:
        """The work that the compiled form does not show, in instructions."""
        square = self.optional * self.optional // _SQUARE_PER_INSTRUCTION
        return _CLASS_READ * self.classes + square

    @property
    def ahead(self) -> int:
        """The work to charge first: with many copies, enough to leave the event loop.

        What is repeated is not parsed here, so no more is charged for it.
        """
        each = _NODE_INSTRUCTIONS + _CLASS_INSTRUCTIONS * self.classes
        return self.reading + min(each * self.repeats, HEAVY_STEPS + 1)


@lru_cache(maxsize=_SHAPES_KEPT_MAX)
def _shape_of(pattern: str) -> _Shape:
    optional = pattern.count("?") - pattern.count("(?")
    repeats = 0
    if "{" in pattern:
        for least, comma, most in _REPEAT.findall(pattern):
            count = int(most or least)
            repeats += count
            if comma:
                optional += max(count - int(least), 1)
    classes = pattern.count("\\p") + pattern.count("\\P")
    return _Shape(classes, optional, repeats)


def work_ahead(pattern: str) -> int:
    """Return what to charge before compiling; the rest of ``instructions`` follows.

    0 for a pattern that is refused, which costs nothing.
    """
    shape = _shape_of(pattern)
    return 0 if shape.is_too_large else shape.ahead


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
    shape = _shape_of(pattern)
    if shape.is_too_large:
        return Regex(None, _REFUSED, 0)
    reading = shape.reading
    try:
        compiled = re2.compile(pattern, options=_options(captures=captures))
    except re2.error as error:
        raw = error.args[0] if error.args else b""
        text = raw.decode("utf-8", "replace") if type(raw) is bytes else str(raw)
        is_large = type(raw) is bytes and raw.startswith(_TOO_LARGE)
        made = _GIVEN_UP_INSTRUCTIONS if is_large else 0
        return Regex(None, text, made + reading)
    if "\\C" in pattern and _has_byte_escape(pattern):
        return Regex(None, "invalid escape sequence: \\C", reading)
    return Regex(compiled, "", compiled.programsize + reading)


def _has_byte_escape(pattern: str) -> bool:
    r"""Return whether the pattern has ``\C``, one byte in RE2 and an error in Go."""
    at = 0
    while (at := pattern.find("\\", at)) >= 0:
        letter = pattern[at + 1 : at + 2]
        if letter == "C":
            return True
        if letter == "Q":
            at = pattern.find("\\E", at)
            if at < 0:
                return False
        at += 2
    return False


def _options(*, captures: bool) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not captures
    options.max_mem = REGEX_PROGRAM_BYTES_MAX
    return options
