r"""Generate a random string that matches a regular expression.

Room: expr. Takes: a pattern. Gives: a random string that it matches.
Next: the functions random of JMESPath and CEL.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 9.2 (random); upstream's generator repeats an open-ended
quantifier up to 4096 times and draws any rune for a dot. It reads POSIX syntax, which
has neither ``\d`` nor ``(?:...)`` nor lazy quantifiers.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import REGEX_CHARACTERS_MAX
from kyverno_mp.values.effort import POINTER_BYTES
from kyverno_mp.values.go.regex import compile_posix, work_ahead

_OPEN_REPEATS_MAX: Final = 4096
_DEPTH_MAX: Final = 100
_COMPILE_STEPS: Final = 48
_CHARACTER_STEPS: Final = 9
_DRAW_BYTES: Final = 200
"""The memory of the closure that draws one character of a pattern."""
_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_PRINTABLE: Final = (0x20, 0x7E)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NAMED: Final = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\x00\x7f",
    "blank": "\t\t  ",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZ__az",
    "xdigit": "09AFaf",
}
"""The first and last character of each range."""
_SIMPLE: Final = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
_QUANTIFIERS: Final = re.compile(r"[*+?]+")
_COUNTED: Final = re.compile(
    r"\{(?P<low>0|[1-9][0-9]*)(?P<comma>,(?P<high>0|[1-9][0-9]*)?)?\}"
)
_OCTAL: Final = re.compile(r"[0-7]{1,3}")
_HEX: Final = re.compile(r"\{[0-9A-Fa-f]+\}|[0-9A-Fa-f]{2}")

_Draw = Callable[[], str]
_Range = tuple[int, int]


def generate(pattern: str, runtime: Runtime) -> str:
    """Generate one text; every character and repeat is charged to the budget.

    Raises: ExpressionFailed with Go's text if the pattern is not POSIX syntax.
    """
    if len(pattern) > REGEX_CHARACTERS_MAX:
        raise BudgetExceeded("expr.regex", "regular expression is too long")
    ahead = work_ahead(pattern)
    runtime.charge(_COMPILE_STEPS + _CHARACTER_STEPS * len(pattern) + ahead)
    runtime.charge_bytes(_DRAW_BYTES * len(pattern))
    # SAFETY: the reader below relies on a valid pattern.
    checked = compile_posix(pattern)
    runtime.charge(max(checked.instructions - ahead, 0))
    if checked.compiled is None:
        raise fail(checked.error_text(pattern))
    if runtime.random_bytes is None:
        raise fail("random: no source of randomness")
    return _PatternReader(pattern, runtime).alternatives()()


class _PatternReader:
    """Compiles the pattern once to nested drawing functions."""

    def __init__(self, pattern: str, runtime: Runtime) -> None:
        self.pattern = pattern
        self.runtime = runtime
        self.at = 0
        self.depth = 0

    def below(self, count: int) -> int:
        source = self.runtime.random_bytes
        assert source is not None
        return int.from_bytes(source(8), "big") % count

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise fail(f"error parsing regexp: unexpected end: `{self.pattern}`")
        self.at += 1
        return char

    def alternatives(self) -> _Draw:
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise fail("random: pattern is nested too deeply")
        choices = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            choices.append(self.sequence())
        self.depth -= 1
        if len(choices) == 1:
            return choices[0]

        def choose() -> str:
            return choices[self.below(len(choices))]()

        return choose

    def sequence(self) -> _Draw:
        parts: list[_Draw] = []
        while self.peek() not in ("", "|", ")"):
            atom = self.atom()
            parts.append(self.repeated(atom))
        return lambda: "".join([part() for part in parts])

    def atom(self) -> _Draw:
        char = self.take()
        if char == "(":
            inner = self.alternatives()
            self.at += 1
            return inner
        if char == "[":
            return self.one_of(self.char_class())
        if char == ".":
            return self.one_of([_PRINTABLE])
        if char in "^$":
            return self.constant("")
        return self.constant(_rune(self.escaped()) if char == "\\" else char)

    def escaped(self) -> int:
        """Return the character of an escape sequence whose backslash is read."""
        octal = _OCTAL.match(self.pattern, self.at)
        if octal is not None:
            self.at = octal.end()
            return int(octal.group(), 8)
        char = self.take()
        digits = _HEX.match(self.pattern, self.at) if char == "x" else None
        if digits is not None:
            self.at = digits.end()
            return int(digits.group().strip("{}"), 16)
        return ord(_ESCAPES.get(char, char))

    def char_class(self) -> list[_Range]:
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[_Range] = []
        while not ranges or self.peek() != "]":
            ranges.extend(self.class_item())
        self.at += 1
        return _without(ranges) if negated else ranges

    def class_item(self) -> list[_Range]:
        if self.pattern.startswith("[:", self.at):
            end = self.pattern.find(":]", self.at + 2)
            if end > 0:
                name = self.pattern[self.at + 2 : end]
                self.at = end + 2
                ranges = _named(name.lstrip("^"))
                return _without(ranges) if name.startswith("^") else ranges
        low = high = self.class_char()
        if self.peek() == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
            self.at += 1
            high = self.class_char()
        return [(low, high)]

    def class_char(self) -> int:
        char = self.take()
        return self.escaped() if char == "\\" else ord(char)

    def one_of(self, ranges: list[_Range]) -> _Draw:
        if not ranges:
            raise fail("random: a character class is empty")
        ends = list(accumulate(high - low + 1 for low, high in ranges))

        def draw() -> str:
            drawn = self.below(ends[-1])
            index = bisect_right(ends, drawn)
            return _rune(ranges[index][1] - (ends[index] - 1 - drawn))

        return draw

    def constant(self, literal: str) -> _Draw:
        return lambda: literal

    def repeated(self, atom: _Draw) -> _Draw:
        count = 0
        while (bounds := self.bounds()) is not None:
            count += 1
            if count > _DEPTH_MAX:
                raise fail("random: pattern is nested too deeply")
            atom = self.repeat(atom, *bounds)
        return atom

    def bounds(self) -> tuple[int, int] | None:
        """Read a quantifier. Go merges several, such as ``+?``."""
        match = _QUANTIFIERS.match(self.pattern, self.at)
        if match is not None:
            self.at = match.end()
            kinds = set(match.group())
            return _SIMPLE[kinds.pop() if len(kinds) == 1 else "*"]
        match = _COUNTED.match(self.pattern, self.at)
        if match is None:
            return None
        self.at = match.end()
        low = int(match["low"])
        return low, int(match["high"] or (-1 if match["comma"] else low))

    def repeat(self, atom: _Draw, low: int, high: int) -> _Draw:
        top = _OPEN_REPEATS_MAX if high < 0 else high

        def draw() -> str:
            count = low + self.below(top - low + 1)
            self.runtime.charge(1 + count)
            pieces = [atom() for _ in range(count)]
            self.runtime.charge_bytes(POINTER_BYTES * count + sum(map(len, pieces)))
            return "".join(pieces)

        return draw


def _rune(code: int) -> str:
    """Return a character; as in Go, a surrogate becomes U+FFFD."""
    return "\ufffd" if code in _SURROGATES else chr(code)


def _named(name: str) -> list[_Range]:
    codes = [ord(char) for char in _NAMED.get(name, "")]
    return list(zip(codes[::2], codes[1::2], strict=True))


def _without(ranges: list[_Range]) -> list[_Range]:
    """Return the other printable characters of ASCII; if none, all other ones."""
    gaps = list(_gaps(ranges, *_PRINTABLE))
    return gaps or list(_gaps(ranges, 0, _LAST))


def _gaps(ranges: list[_Range], first: int, last: int) -> Iterator[_Range]:
    for low, high in sorted(ranges):
        if low > last:
            break
        if low > first:
            yield first, low - 1
        first = max(first, high + 1)
    if first <= last:
        yield first, last
