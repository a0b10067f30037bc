"""Generate a random string that matches a regular expression.

Room: expr. Takes: a pattern that RE2 accepts. Gives: a random string that it matches.
Next: expr/jmespath/functions/randomness.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 9.2 (random); upstream's generator repeats an open-ended
quantifier up to 4096 times and draws any rune for a dot.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import POINTER_BYTES

_OPEN_REPEATS_MAX: Final = 4096
_DEPTH_MAX: Final = 100
_PRINTABLE: Final = tuple(map(chr, range(0x20, 0x7F)))
_DIGITS: Final = tuple("0123456789")
_WORD: Final = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_BLANKS: Final = tuple("\t\n\f\r ")
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _BLANKS}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NAMED: Final = {
    "alnum": tuple(char for char in _WORD if char != "_"),
    "alpha": tuple(char for char in _WORD if char.isalpha()),
    "digit": _DIGITS,
    "lower": tuple("abcdefghijklmnopqrstuvwxyz"),
    "upper": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "word": _WORD,
    "space": _BLANKS,
    "xdigit": tuple("0123456789ABCDEFabcdef"),
    "punct": tuple(c for c in _PRINTABLE if not c.isalnum() and c != " "),
    "print": _PRINTABLE,
    "graph": _PRINTABLE[1:],
}
_RANGE_MAX: Final = 0x3000
"""The maximum number of characters used from one range; more would not be useful."""

_Draw = Callable[[], str]


def generate(pattern: str, runtime: Runtime) -> str:
    """Generate one text; every character and repeat is charged to the budget."""
    reader = _PatternReader(pattern, runtime)
    draw = reader.alternatives()
    if reader.at < len(pattern):
        raise fail(f"error parsing regexp: unexpected ): `{pattern}`")
    return draw()


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
            self.skip_group_head()
            inner = self.alternatives()
            self.at += 1
            return inner
        if char == "[":
            return self.one_of(self.char_class())
        if char == ".":
            return self.one_of(_PRINTABLE)
        if char in "^$":
            return self.constant("")
        if char == "\\":
            return self.escape()
        return self.constant(char)

    def skip_group_head(self) -> None:
        if self.peek() != "?":
            return
        while self.peek() not in (":", ">", ")", ""):
            self.at += 1
        if self.peek() in (":", ">"):
            self.at += 1

    def escape(self) -> _Draw:
        char = self.take()
        if char == "Q":
            end = self.pattern.find("\\E", self.at)
            end = len(self.pattern) if end < 0 else end
            text = self.pattern[self.at : end]
            self.at = min(end + 2, len(self.pattern))
            return self.constant(text)
        if char in "bBAzE":
            return self.constant("")
        return self.one_of(self.escaped_chars(char))

    def escaped_chars(self, char: str) -> tuple[str, ...]:
        if char.lower() in _CLASSES:
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else _without(chars)
        if char == "x":
            return (self.hex_char(),)
        if char in "pP":
            raise fail("random: Unicode classes are not supported")
        return (_ESCAPES.get(char, char),)

    def hex_char(self) -> str:
        if self.peek() == "{":
            end = self.pattern.find("}", self.at)
            digits = self.pattern[self.at + 1 : end]
            self.at = end + 1
        else:
            digits = self.pattern[self.at : self.at + 2]
            self.at += 2
        return chr(int(digits, 16))

    def char_class(self) -> tuple[str, ...]:
        negated = self.peek() == "^"
        self.at += negated
        chars: list[str] = []
        first = True
        while first or self.peek() != "]":
            first = False
            chars.extend(self.class_item())
        self.at += 1
        return _without(tuple(chars)) if negated else tuple(chars)

    def class_item(self) -> tuple[str, ...]:
        if self.pattern.startswith("[:", self.at):
            end = self.pattern.find(":]", self.at)
            if end > 0:
                name = self.pattern[self.at + 2 : end]
                self.at = end + 2
                chars = _NAMED.get(name.lstrip("^"), ())
                return _without(chars) if name.startswith("^") else chars
        low = self.class_char()
        if len(low) != 1 or self.peek() != "-" or self.ahead() in ("]", ""):
            return low
        self.at += 1
        high = self.class_char()
        start = ord(low[0])
        end = min(ord(high[0]), start + _RANGE_MAX)
        return tuple(map(chr, range(start, end + 1)))

    def ahead(self) -> str:
        return self.pattern[self.at + 1 : self.at + 2]

    def class_char(self) -> tuple[str, ...]:
        char = self.take()
        return self.escaped_chars(self.take()) if char == "\\" else (char,)

    def one_of(self, chars: tuple[str, ...]) -> _Draw:
        if not chars:
            raise fail("random: a character class is empty")
        return lambda: chars[self.below(len(chars))]

    def constant(self, text: str) -> _Draw:
        return lambda: text

    def repeated(self, atom: _Draw) -> _Draw:
        while (bounds := self.bounds()) is not None:
            atom = self.repeat(atom, *bounds)
        return atom

    def bounds(self) -> tuple[int, int] | None:
        char = self.peek()
        simple = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(char)
        if simple is not None:
            self.at += 1
        elif char == "{":
            simple = self.counted()
        if simple is not None and self.peek() == "?":
            self.at += 1
        return simple

    def counted(self) -> tuple[int, int] | None:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(end, 0)].partition(",")
        if not low.isdigit() or (high and not high.isdigit()):
            return None
        self.at = end + 1
        return int(low), int(high) if high else (-1 if comma else int(low))

    def repeat(self, atom: _Draw, low: int, high: int) -> _Draw:
        top = low + _OPEN_REPEATS_MAX if high < 0 else high

        def draw() -> str:
            count = low + self.below(top - low + 1)
            self.runtime.charge(1 + count)
            pieces = [atom() for _ in range(count)]
            self.runtime.charge_bytes(POINTER_BYTES * count + sum(map(len, pieces)))
            return "".join(pieces)

        return draw


def _without(chars: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(char for char in _PRINTABLE if char not in chars)
