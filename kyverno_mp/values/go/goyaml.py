"""Write a two-level map of strings like gopkg.in/yaml.v2 v2.4.0.

Room: values. Takes: {policy: {rule: message}}. Gives: YAML text with Go's key order,
scalar styles and folding at 80 columns. Next: admission.denial.
Source: docs/behaviour/controllers 2.8; yaml.v2 encode.go, resolve.go, sorter.go and
emitterc.go, whose output tests compare byte for byte.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cmp_to_key, lru_cache
from typing import Final

_WIDTH: Final = 80
_SIMPLE_KEY_BYTES_MAX: Final = 128
_REMEMBERED_TEXTS: Final = 512
_REMEMBERED_TEXT_MAX: Final = 2048
"""The maximum length of rule and text together; with it, the cache stays below one
megabyte."""
_BREAKS: Final = "\n\r\x85\u2028\u2029"

# yaml.v2's is_printable excludes tabs and everything outside the basic plane.
_SPECIAL = re.compile("[^\n -~\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd]")
_ESCAPED = re.compile(
    "[^ !#-\\[\\]-~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]"
)
_SPACE_BREAK = re.compile("[ ][\n\r\x85\u2028\u2029]")
_BREAK_SPACE = re.compile("[\n\r\x85\u2028\u2029][ ]")
_ANY_BREAK = re.compile("[\n\r\x85\u2028\u2029]")
_LINE_START = re.compile(
    "(\\A|[\n\r\x85\u2028\u2029])(?=[^\n\r\x85\u2028\u2029])",
)
_INDICATOR = re.compile(
    "\\A(?:---|\\.\\.\\.|[#,\\[\\]{}&*!|>'\"%@`]|[?:-](?:[ \t]|\\Z))"
    "|:(?:[ \t]|\\Z)|[ \t\n\r\x85\u2028\u2029\0]#",
)

_RESOLVED: Final = frozenset(
    # Each word in the three spellings of yaml.v2; y and n have only two.
    [*"yYnN~"]
    + [
        spelling
        for word in ("yes", "no", "true", "false", "on", "off", "null")
        for spelling in (word, word.capitalize(), word.upper())
    ]
    + [
        sign + spelling
        for sign in ("", "+", "-")
        for spelling in (".inf", ".Inf", ".INF")
    ]
    + [".nan", ".NaN", ".NAN"],
)
_INTEGER = re.compile(
    "([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]([0-7]+)|0[bB]([01]+)|(0[0-7]*)|([1-9][0-9]*))",
)
_BINARY = re.compile("0b[+-]?[01]{1,64}|-0b[01]{1,64}")
_FLOAT = re.compile("[-+]?(?:\\.[0-9]+|[0-9]+(?:\\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_POINT_FLOAT = re.compile(
    "\\.[0-9]++(?:_[0-9]++)*+(?:[eE][-+]?[0-9]++(?:_[0-9]++)*+)?",
)
_BASE60 = re.compile("[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])++(?:\\.[0-9_]*)?")
_TIMESTAMP = re.compile(
    "([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    "(?:(?:[Tt]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?"
    "(?:Z|[+-]([0-9]{2}):([0-9]{2})))"
    "|(?: +([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?))?",
)
_ESCAPES: Final = {
    "\0": "\\0", "\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v",
    "\f": "\\f", "\r": "\\r", "\x1b": "\\e", '"': '\\"', "\\": "\\\\",
    "\x85": "\\N", "\xa0": "\\_", "\u2028": "\\L", "\u2029": "\\P",
}  # fmt: skip


def block_text(messages: Mapping[str, Mapping[str, str]]) -> str:
    """Write the map; the text ends with a line break.

    Shape: ``{"p": {"r": "a: b"}}`` becomes the two lines ``p:`` and ``  r: 'a: b'``.
    Inner maps must not be empty.
    """
    parts: list[str] = []
    for policy in _remembered_order(tuple(messages)):
        simple, head = _remembered_head(policy)
        parts.append(head)
        rules = tuple(messages[policy])
        for number, rule in enumerate(_remembered_order(rules)):
            # After a long key, the first key of its map is on the same line as the
            # indicator.
            pad = "" if number == 0 and not simple else "  "
            message = messages[policy][rule]
            if len(rule) + len(message) > _REMEMBERED_TEXT_MAX:
                parts.append(_entry(pad, rule, message))
            else:
                parts.append(_remembered(pad, rule, message))
    return "".join(parts)


def sorted_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys in yaml.v2's natural, digit-aware order."""
    return sorted(keys, key=cmp_to_key(_compare))


def _head(key: str) -> tuple[bool, str]:
    """Return whether a key of the outer map is simple, and its YAML text."""
    if _is_simple_key(key):
        return True, _simple_key(key) + ":\n"
    return False, _line("? ", key, column=2, indent=2) + ": "


# PERF: keys are names of policies and rules, which are equal for every denied object.
_remembered_order = lru_cache(maxsize=_REMEMBERED_TEXTS)(sorted_keys)
_remembered_head = lru_cache(maxsize=_REMEMBERED_TEXTS)(_head)


def _entry(pad: str, key: str, value: str) -> str:
    if _is_simple_key(key):
        head = f"{pad}{_simple_key(key)}: "
        # The column counts from the start of the line, including the two spaces.
        return _line(head, value, column=len(head) + 2 - len(pad), indent=4)
    return _line(f"{pad}? ", key, column=4, indent=4) + _line(
        "  : ", value, column=4, indent=4
    )


# PERF: most rules have the same message for every denied object; folding one takes 10
# us.
_remembered = lru_cache(maxsize=_REMEMBERED_TEXTS)(_entry)


def _is_simple_key(key: str) -> bool:
    if _ANY_BREAK.search(key):
        return False
    return len(key.encode()) <= _SIMPLE_KEY_BYTES_MAX


def _simple_key(key: str) -> str:
    """Write a key that precedes its colon: never folded, never a block."""
    style = _style(key)
    if style == "plain":
        return key
    return (
        _single_quoted(key, None, 0)
        if style == "single"
        else _double_quoted(key, None, 0)
    )


def _line(head: str, scalar: str, *, column: int, indent: int) -> str:
    """Write ``head`` and a scalar that starts at ``column``, and end the line."""
    style = _style(scalar)
    if style == "plain":
        return f"{head}{_fold(scalar, column, indent)}\n"
    if style == "single":
        return f"{head}{_single_quoted(scalar, column, indent)}\n"
    if style == "double":
        return f"{head}{_double_quoted(scalar, column, indent)}\n"
    body = _LINE_START.sub("\\1" + " " * indent, scalar)
    end = "" if scalar[-1] in _BREAKS else "\n"
    return f"{head}|{_block_hints(scalar)}\n{body}{end}"


def _style(scalar: str) -> str:
    """Choose plain, single, double or literal like stringv and select_scalar_style."""
    if scalar.isascii() and scalar.isprintable() and scalar:
        # PERF: nearly every message has no line break and nothing to escape.
        if resolves(scalar):
            return "double"
        return "single" if _needs_quotes(scalar) else "plain"
    special = (
        _SPECIAL.search(scalar) is not None or _SPACE_BREAK.search(scalar) is not None
    )
    if "\n" in scalar:
        return "double" if special or scalar[-1] == " " else "literal"
    if not scalar or special or resolves(scalar):
        return "double"
    if _ANY_BREAK.search(scalar):
        return "double" if _BREAK_SPACE.search(scalar) else "single"
    return "single" if _needs_quotes(scalar) else "plain"


def _needs_quotes(scalar: str) -> bool:
    return (
        scalar[0] == " " or scalar[-1] == " " or _INDICATOR.search(scalar) is not None
    )


def _fold(scalar: str, column: int, indent: int) -> str:
    """Turn single spaces past column 80 into line breaks; runs of spaces never fold.

    PERF: this checks one space per line instead of every character, because denials
    wait for it.
    """
    if column + len(scalar) <= _WIDTH:
        return scalar
    lines = []
    start = 0
    while True:
        at = scalar.find(" ", max(start + _WIDTH + 1 - column, start))
        while at >= 0 and (
            at == 0 or scalar[at - 1] == " " or _blank_or_end(scalar, at + 1)
        ):
            at = scalar.find(" ", at + 1)
        if at < 0:
            lines.append(scalar[start:])
            return ("\n" + " " * indent).join(lines)
        lines.append(scalar[start:at])
        start = at + 1
        column = indent


def _blank_or_end(scalar: str, index: int) -> bool:
    return index == len(scalar) or scalar[index] == " "


def _single_quoted(scalar: str, column: int | None, indent: int) -> str:
    quoted = scalar.replace("'", "''")
    if column is None:
        return f"'{quoted}'"
    parts = [part for part in re.split("([\u2028\u2029]+)", quoted) if part]
    column += 1
    for number, part in enumerate(parts):
        if part[0] in _BREAKS:
            column = indent
            if number + 1 < len(parts):
                parts[number] = part + " " * indent
        else:
            parts[number] = _fold(part, column, indent)
    return f"'{''.join(parts)}'"


def _double_quoted(scalar: str, column: int | None, indent: int) -> str:
    if scalar.startswith("\ufeff"):
        # KYVERNO: for every character yaml.v2's is_bom checks the start of the text, so
        # a string with a byte order mark at its start is escaped completely.
        return f'"{"".join(map(_escape_character, scalar))}"'
    words = [_ESCAPED.sub(_escape, word) for word in scalar.split(" ")]
    if column is None:
        return f'"{" ".join(words)}"'
    parts = [words[0]]
    column += 1 + len(words[0])
    last = len(words) - 1
    for number in range(1, len(words)):
        word = words[number]
        ends = number == last and not word
        if column > _WIDTH and words[number - 1] and not ends:
            parts.append("\n" + " " * indent + ("" if word else "\\") + word)
            column = indent + len(word) + (not word)
        else:
            parts.append(" " + word)
            column += 1 + len(word)
    return f'"{"".join(parts)}"'


def _escape(match: re.Match[str]) -> str:
    return _escape_character(match.group())


def _escape_character(character: str) -> str:
    escape = _ESCAPES.get(character)
    if escape is not None:
        return escape
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - the bounds of YAML's three escape forms
        return f"\\x{code:02X}"
    if code <= 0xFFFF:  # noqa: PLR2004 - as above
        return f"\\u{code:04X}"
    return f"\\U{code:08X}"


def _block_hints(scalar: str) -> str:
    """Return the indentation and chomping indicators of a literal block."""
    indent = "2" if scalar[0] == " " or scalar[0] in _BREAKS else ""
    if scalar[-1] not in _BREAKS:
        return indent + "-"
    if len(scalar) == 1 or scalar[-2] in _BREAKS:
        return indent + "+"
    return indent


def resolves(scalar: str) -> bool:
    """Return whether the plain text would be parsed as a type other than a string."""
    if not scalar or scalar in _RESOLVED:
        return True
    first = scalar[0]
    if first == ".":
        return _POINT_FLOAT.fullmatch(scalar) is not None and _is_finite(scalar)
    if first not in "+-0123456789":
        return False
    if _BASE60.fullmatch(scalar) or _is_timestamp(scalar):
        return True
    plain = scalar.replace("_", "")
    if _is_integer(plain) or _BINARY.fullmatch(plain):
        return True
    return _FLOAT.fullmatch(plain) is not None and _is_finite(plain)


def _is_finite(scalar: str) -> bool:
    return abs(float(scalar)) != float("inf")


def _is_integer(scalar: str) -> bool:
    """Return whether Go's ParseInt or ParseUint (base 0, 64 bits) accepts the text."""
    match = _INTEGER.fullmatch(scalar)
    if match is None or len(scalar) > 3 + 64:
        return False
    sign, *digits = match.groups()
    number = 0
    for base, figures in zip((16, 8, 2, 8, 10), digits, strict=True):
        if figures is not None:
            number = int(figures, base)
    bound = {"": 2**64, "+": 2**63, "-": 2**63 + 1}[sign]
    return number < bound


def _is_timestamp(scalar: str) -> bool:
    match = _TIMESTAMP.fullmatch(scalar)
    if match is None:
        return False
    year, month, day, *rest = [int(part or 0) for part in match.groups()]
    hour, minute, second, zone_hour, zone_minute = rest[:5]
    if match.group(9) is not None:
        hour, minute, second = rest[5:8]
    try:
        # Go has a year 0, a leap year like 2000; Python has no year 0.
        datetime(year or 2000, month, day, hour, minute, second)  # noqa: DTZ001 - only
        # the ranges of the fields matter here
    except ValueError:
        return False
    return zone_hour <= 24 and zone_minute < 60  # noqa: PLR2004 - Go's own bounds


def _compare(left: str, right: str) -> int:
    """Compare like yaml.v2's keyList.Less: digits by value, letters last."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return _compare_at(left, right, index)
    return len(left) - len(right)


def _compare_at(left: str, right: str, index: int) -> int:
    a, b = left[index], right[index]
    a_letter, b_letter = a.isalpha(), b.isalpha()
    if a_letter and b_letter:
        return -1 if a < b else 1
    if a_letter or b_letter:
        return -1 if b_letter else 1
    start = 0
    if a == "0" or b == "0":
        before = index - 1
        while before >= 0 and left[before].isdecimal():
            if left[before] != "0":
                start = 1
                break
            before -= 1
    a_number, a_end = _number(left, index, start)
    b_number, b_end = _number(right, index, start)
    if a_number != b_number:
        return -1 if a_number < b_number else 1
    if a_end != b_end:
        return a_end - b_end
    return -1 if a < b else 1


def _number(key: str, index: int, start: int) -> tuple[int, int]:
    """Parse digits from ``index`` with int64 wrap-around; return value and end."""
    value = start
    while index < len(key) and key[index].isdecimal():
        value = value * 10 + ord(key[index]) - ord("0")
        index += 1
    return (value + 2**63) % 2**64 - 2**63, index
