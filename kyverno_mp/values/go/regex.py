"""Compile regular expressions with RE2, and measure the work of compiling.

Room: values. Takes: patterns of up to REGEX_CHARACTERS_MAX. Gives: Regex.
Next: the regex functions of JMESPath and CEL, which charge for the work.
May touch: a bounded cache of compiled expressions.
Source: measured on RE2; Go's regexp/syntax (error strings, the escape C).

The length of a pattern does not show the work of compiling it: a class of Unicode
letters has three characters and 400 instructions, and ``a{1000}`` has a thousand. So
the number of instructions is charged. Each caller is charged at its first use of a
pattern, even if another caller has already compiled it, because the order of callers is
random.

RE2 compiles in one call, during which no other thread runs: patterns that would take
more than about 50 ms are rejected beforehand. The predictable work is charged before
the compilation, so that the event loop can move a long compilation to a thread.
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
"""The maximum number in all cached expressions together, 16 bytes each; one expression
can have 130,000."""
_KEPT_MAX: Final = 1024
_SHAPES_KEPT_MAX: Final = 256
_TOO_LARGE: Final = b"pattern too large"
_GIVEN_UP_INSTRUCTIONS: Final = 120_000
"""The maximum number of instructions that RE2 compiles before it rejects a pattern as
too large."""
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
"""RE2's error -> Go's error."""
_SQUARE_PER_INSTRUCTION: Final = 180
"""Compiling a long row of ``a?`` takes time quadratic in its length, including
copies."""
_CLASS_INSTRUCTIONS: Final = 400
_CLASS_READ: Final = 1000
"""Reading a Unicode class, including its case variants, takes half a millisecond."""
_NODE_INSTRUCTIONS: Final = 4
_ATOMS_MAX: Final = 2_000_000
"""Counting stops here, because RE2 gives up much earlier."""
_TOKEN: Final = re.compile(
    r"""
    \\Q.*?(?:\\E|\Z)
    | \\[pP](?:\{\^?\w*+\}|.)
    | \\.
    | \[\^?\]?(?:\[:\^?[a-z]{1,10}:\]|\\.|[^\]\\])*+(?:\]|\Z)
    | \((?:\?(?:P?<\w*+>|[a-zA-Z-]*+[:)]))?
    | \)
    | \{(?P<least>\d{1,4})(?:(?P<comma>,)(?P<most>\d{0,4}))?\}\??
    | [*+?]\??
    """,
    re.DOTALL | re.VERBOSE,
)
"""Matches all tokens except single characters. PERF: no part of a text is read for
several tokens, even if the expression is invalid."""
_WIDE: Final = re.compile(r"-[^\x00-\x7f]")
_REFUSED: Final = "expression too large"


class Regex(NamedTuple):
    """A compiled expression, or the error of the pattern.

    ``instructions``: the work of compiling the pattern; each instruction stands for
    half a microsecond.
    """

    compiled: Any
    error: str
    instructions: int

    def error_text(self, pattern: str) -> str:
        """Return the pattern's error in the format of Go's package regexp."""
        for re2_message, go_message in _MESSAGES.items():
            if self.error.startswith(re2_message):
                part = self.error[len(re2_message) :].removeprefix(": ")
                if go_message.startswith(("missing closing )", "unexpected")):
                    part = pattern
                if go_message.startswith("trailing"):
                    part = ""
                return f"error parsing regexp: {go_message}: `{part}`"
        return f"error parsing regexp: {self.error}"


class _Memo:
    """A cache of compiled expressions by pattern; it is emptied when it is full."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Regex] = {}
        self._instructions = 0

    def find(self, key: tuple[str, bool]) -> Regex | None:
        """Return the cached expression, if any."""
        return self._known.get(key)

    def keep(self, key: tuple[str, bool], regex: Regex) -> None:
        """Add an expression; if the cache is full, empty it first.

        Concurrent threads may count an expression twice, or not at all; emptying the
        cache corrects the count.
        """
        self._instructions += regex.instructions
        full = self._instructions > _KEPT_INSTRUCTIONS_MAX
        if full or len(self._known) >= _KEPT_MAX:
            self._known.clear()
            self._instructions = regex.instructions
        self._known[key] = regex


_memo: Final = _Memo()


class _Shape(NamedTuple):
    """The properties of a pattern that make it slow to compile, counted in its text.

    ``classes``: the Unicode classes; ``optional``: the optional parts, including the
    copies made by repetitions of the part or of a group around it; ``repeats``: the
    copies that repetitions request, counted twice for a class with a range beyond
    ASCII; ``atoms``: the parts compiled after copying, 0 without repetitions.
    """

    classes: int
    optional: int
    repeats: int
    atoms: int

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
        """The work that the compiled size does not reflect, in instructions."""
        square = self.optional * self.optional // _SQUARE_PER_INSTRUCTION
        return _CLASS_READ * self.classes + square

    @property
    def ahead(self) -> int:
        """The work to charge in advance; many copies suffice to leave the event loop.

        It is not known here which class is repeated, so the charge is limited.
        """
        copied = _NODE_INSTRUCTIONS * max(self.atoms, self.repeats)
        copied += _CLASS_INSTRUCTIONS * self.classes * self.repeats
        return self.reading + min(copied, HEAVY_STEPS + 1)


@lru_cache(maxsize=_SHAPES_KEPT_MAX)
def _shape_of(pattern: str) -> _Shape:
    classes = pattern.count("\\p") + pattern.count("\\P")
    if "{" in pattern:
        return _copied(pattern, classes)
    # No copies. PERF: groups that begin with "(?" are counted, too, but they are few.
    return _Shape(classes, pattern.count("?") + pattern.count("*"), 0, 0)


def _copied(pattern: str, classes: int) -> _Shape:
    """Count the parts that repetitions copy, including repetitions of outer groups.

    PERF: one pass without objects, because a long pattern has thousands of tokens.
    """
    groups: list[tuple[int, int]] = []
    optional, atoms = 0, 0
    last_optional, last_atoms, is_wide = 0, 0, False
    repeats, end = 0, 0
    for token in _TOKEN.finditer(pattern):
        begin, lexeme = token.start(), token.group()
        head = lexeme[0]
        if begin != end:
            atoms += begin - end
            last_optional, last_atoms, is_wide = 0, 1, False
        end = begin + len(lexeme)
        if head == "(":
            if lexeme[-1] != ")":
                groups.append((optional, atoms))
                optional = atoms = 0
        elif head == ")":
            last_optional, last_atoms, is_wide = optional, atoms, False
            before = groups.pop() if groups else (0, 0)
            optional, atoms = optional + before[0], atoms + before[1]
        elif head in "\\[":
            atoms += 1
            last_optional, last_atoms = 0, 1
            is_wide = head == "[" and _WIDE.search(lexeme) is not None
        elif head != "{":
            optional += head != "+"
            last_optional += head != "+"
        else:
            count, absent = _repetition(token)
            repeats += 2 * count if is_wide else count
            absent += last_optional * (count - 1)
            more = min(last_atoms * (count - 1), _ATOMS_MAX)
            optional, last_optional = optional + absent, last_optional + absent
            atoms, last_atoms = atoms + more, last_atoms + more
        if optional > REGEX_OPTIONAL_MAX:
            # The pattern is rejected, because the outer groups contain at least as
            # many.
            break
    atoms = min(max(atoms + len(pattern) - end, 0), _ATOMS_MAX)
    return _Shape(classes, optional, repeats, atoms if repeats else 0)


def _repetition(token: re.Match[str]) -> tuple[int, int]:
    """Return the number of copies, and how many of the copies are optional."""
    least = int(token["least"])
    count = int(token["most"] or least)
    is_optional = token["comma"] is not None or not least
    return max(count, 1), max(count - least, 1) if is_optional else 0


def work_ahead(pattern: str) -> int:
    """Return the work to charge before compiling; it is a part of ``instructions``.

    0 for a pattern that is rejected, which costs nothing.
    """
    shape = _shape_of(pattern)
    return 0 if shape.is_too_large else shape.ahead


def compile_regex(pattern: str, *, captures: bool) -> Regex:
    """Compile a pattern, or return the cached expression.

    Without ``captures``, groups capture nothing, which is sufficient for a test.
    """
    key = pattern, captures
    regex = _memo.find(key)
    if regex is None:
        regex = _compile(pattern, captures=captures)
        _memo.keep(key, regex)
    return regex


def compile_posix(pattern: str) -> Regex:
    """Compile a pattern of POSIX syntax, as Go does without flags; without a cache."""
    regex = _compile(pattern, captures=False, posix=True)
    if regex.error.startswith("invalid UTF-8"):
        # RE2's error for a "-" at the end, in a class without an end.
        return regex._replace(error="invalid character class range: -")
    return regex


def _compile(pattern: str, *, captures: bool, posix: bool = False) -> Regex:
    shape = _shape_of(pattern)
    if shape.is_too_large:
        return Regex(None, _REFUSED, 0)
    reading = shape.reading
    try:
        compiled = re2.compile(
            pattern, options=_options(captures=captures, posix=posix)
        )
    except re2.error as error:
        raw = error.args[0] if error.args else b""
        reason = raw.decode("utf-8", "replace") if type(raw) is bytes else str(raw)
        is_large = type(raw) is bytes and raw.startswith(_TOO_LARGE)
        instructions = _GIVEN_UP_INSTRUCTIONS if is_large else 0
        return Regex(None, reason, instructions + reading)
    if "\\C" in pattern and _has_byte_escape(pattern):
        return Regex(None, "invalid escape sequence: \\C", reading)
    return Regex(compiled, "", compiled.programsize + reading)


def _has_byte_escape(pattern: str) -> bool:
    r"""Return whether the pattern has ``\C``, a byte in RE2 but an error in Go."""
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


def _options(*, captures: bool, posix: bool) -> Any:
    options = re2.Options()
    options.posix_syntax = posix
    options.log_errors = False
    options.never_capture = not captures
    options.max_mem = REGEX_PROGRAM_BYTES_MAX
    return options
