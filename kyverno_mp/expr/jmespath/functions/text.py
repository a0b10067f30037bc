"""Implement functions that compare, search, split and convert strings.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.1, 9.2.
"""

import posixpath
from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    BOOL,
    NUMBER,
    STRING,
    STRINGS,
    TEXTUAL,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.jmespath.functions.objects import text_of
from kyverno_mp.expr.jmespath.interim import GoInt, floats, leave
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import SEMVER_CHARACTERS_MAX
from kyverno_mp.values.effort import search_steps, width_of
from kyverno_mp.values.go.duration import float_to_int64
from kyverno_mp.values.go.gotext import json_text, replaced_bytes
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.semver import ZERO, parse_range, parse_version
from kyverno_mp.values.wildcard import matches

_PORTION: Final = 16 * 1024
"""The number of characters that a loop reads between two charges."""
_REPLACED_PER_STEP: Final = 16
_TEXT_BYTES: Final = 56
"""The memory of a string in addition to its characters."""
_RUNES: Final = 0x110000
_SET_ITEM_BYTES: Final = 128


def _starts_with(_runtime: Runtime, string: str, prefix: str) -> Json:
    return string.startswith(prefix)


def _ends_with(_runtime: Runtime, string: str, suffix: str) -> Json:
    return string.endswith(suffix)


def _to_string(runtime: Runtime, value: Json) -> Json:
    if type(value) is str:
        return value
    value = leave(runtime, value)
    if runtime.ints_are_numbers:
        value = floats(runtime, value)
    return json_text(value, charge=runtime.charge_bytes, visit=runtime.charge)


def _compare(_runtime: Runtime, left: str, right: str) -> Json:
    # KYVERNO: 9.2 - the result is a Go int, so a comparison with a literal is always
    # false.
    return GoInt((left > right) - (left < right))


def _equal_fold(runtime: Runtime, left: str, right: str) -> Json:
    if left == right:
        return True
    if len(left) != len(right):
        return False
    if left.isascii() and right.isascii():
        runtime.charge_made(2 * len(left), "")
        return left.lower() == right.lower()
    for start in range(0, len(left), _PORTION):
        end = start + _PORTION
        runtime.charge(min(_PORTION, len(left) - start) + 1)
        pairs = zip(left[start:end], right[start:end], strict=True)
        if not all(a == b or _fold(a) == _fold(b) for a, b in pairs):
            return False
    return True


def _fold(char: str) -> str:
    folded = char.casefold()
    if len(folded) == 1:
        return folded
    lowered = char.lower()
    return lowered if len(lowered) == 1 else char


def _replace(runtime: Runtime, string: str, old: str, new: str, count: float) -> Json:
    return _replace_count(runtime, string, old, new, float_to_int64(count))


def _replace_all(runtime: Runtime, string: str, old: str, new: str) -> Json:
    return _replace_count(runtime, string, old, new, -1)


def _replace_count(
    runtime: Runtime, string: str, old: str, new: str, count: int
) -> str:
    runtime.charge(2 * search_steps(old, string))
    occurrences = string.count(old)
    times = occurrences if count < 0 else min(occurrences, count)
    length = len(string) + times * max(len(new) - len(old), 0)
    runtime.charge_made(length, max(string, new, key=width_of))
    runtime.charge(times // _REPLACED_PER_STEP)
    return string.replace(old, new, times)


def upper(string: str) -> str:
    """Map to upper case rune by rune, like strings.ToUpper, which keeps ``ß``."""
    if string.isascii():
        return string.upper()
    return "".join(map(_upper_rune, string))


def _upper_rune(char: str) -> str:
    for mapped in (char.upper(), char.title()):
        if len(mapped) == 1:
            return mapped
    return char


def lower(string: str) -> str:
    """Map to lower case rune by rune, like strings.ToLower."""
    if string.isascii():
        return string.lower()
    return "".join("i" if char == "\u0130" else char.lower() for char in string)


def _to_upper(runtime: Runtime, string: str) -> Json:
    return _mapped(runtime, string, upper)


def _to_lower(runtime: Runtime, string: str) -> Json:
    return _mapped(runtime, string, lower)


def _mapped(runtime: Runtime, string: str, change: Callable[[str], str]) -> str:
    """Map a string rune by rune, in portions."""
    runtime.charge_made(2 * len(string), string)
    if string.isascii():
        return change(string)
    if runtime.keeps_bytes:
        string = replaced_bytes(string)
    parts: list[str] = []
    for start in range(0, len(string), _PORTION):
        portion = string[start : start + _PORTION]
        runtime.charge(len(portion))
        parts.append(change(portion))
    return "".join(parts)


def trim(
    runtime: Runtime, string: str, characters: str, *, left: bool, right: bool
) -> str:
    """Trim characters at both ends; Python's strip would be quadratic."""
    runtime.charge_made(len(string), string)
    runtime.charge(len(characters))
    runtime.charge_bytes(min(len(characters), _RUNES) * _SET_ITEM_BYTES)
    cut = frozenset(characters)
    start, end = 0, len(string)
    while left and start < end and string[start] in cut:
        start += 1
        if not start % _PORTION:
            runtime.charge(_PORTION)
    while right and end > start and string[end - 1] in cut:
        end -= 1
        if not end % _PORTION:
            runtime.charge(_PORTION)
    return string[start:end]


def _trim(runtime: Runtime, string: str, characters: str) -> Json:
    return trim(runtime, string, characters, left=True, right=True)


def _trim_prefix(runtime: Runtime, string: str, prefix: str) -> Json:
    runtime.charge_made(len(string), string)
    return string.removeprefix(prefix)


def _split(runtime: Runtime, string: str, separator: str) -> Json:
    if not separator:
        runtime.charge_items(len(string))
        runtime.charge_bytes(0 if string.isascii() else len(string) * _TEXT_BYTES)
        return list(string)
    runtime.charge(search_steps(separator, string))
    occurrences = string.count(separator)
    runtime.charge(search_steps(separator, string))
    runtime.charge_items(occurrences)
    runtime.charge_made(len(string), string)
    runtime.charge_bytes(occurrences * _TEXT_BYTES)
    return string.split(separator)


def _pattern_match(runtime: Runtime, pattern: str, value: Json) -> Json:
    string = text_of(runtime, value)
    assert string is not None
    return matches(pattern, string, runtime.charge)


def _to_boolean(runtime: Runtime, string: str) -> Json:
    lowered = lower(string) if len(string) <= len("false") else ""
    if lowered in ("true", "false"):
        return lowered == "true"
    runtime.charge_made(len(string), string)
    raise function_error(
        "to_boolean",
        f"lowercase argument must be 'true' or 'false' (provided: '{string}')",
    )


def _path_canonicalize(runtime: Runtime, path: str) -> Json:
    if not path:
        return ""
    runtime.charge_made(4 * len(path), path)
    parts = path.count("/")
    runtime.charge_items(2 * parts)
    runtime.charge_bytes(parts * _TEXT_BYTES)
    # Go treats two leading slashes as the root; POSIX does not.
    return posixpath.normpath("/" + path.lstrip("/") if path[0] == "/" else path)


def _truncate(runtime: Runtime, string: str, length: float) -> Json:
    limit = max(float_to_int64(length), 0)
    runtime.charge_made(min(limit, len(string)), string)
    return replaced_bytes(string[:limit]) if runtime.keeps_bytes else string[:limit]


def _semver_compare(runtime: Runtime, version: str, constraint: str) -> Json:
    # KYVERNO: 9.2 - an invalid version counts as 0.0.0.
    size = len(version) + len(constraint)
    if size > SEMVER_CHARACTERS_MAX:
        raise BudgetExceeded("expr.semver", "version or range is too long")
    runtime.charge(2 * size)
    return parse_range(constraint)(parse_version(version) or ZERO)


STANDARD: Final = (
    FunctionEntry("ends_with", (STRING, STRING), _ends_with),
    FunctionEntry("starts_with", (STRING, STRING), _starts_with),
    FunctionEntry("to_string", (ANY,), _to_string),
)
FUNCTIONS: Final = (
    FunctionEntry(
        "compare",
        (STRING, STRING),
        _compare,
        NUMBER,
        "compares two strings lexicographically",
    ),
    FunctionEntry(
        "equal_fold",
        (STRING, STRING),
        _equal_fold,
        BOOL,
        "allows comparing two strings for equivalency where the only differences are "
        "letter cases",
    ),
    FunctionEntry(
        "replace",
        (STRING, STRING, STRING, NUMBER),
        _replace,
        STRING,
        "replaces a specified number of instances of the source string with the "
        "replacement string in a parent ",
    ),
    FunctionEntry(
        "replace_all",
        (STRING, STRING, STRING),
        _replace_all,
        STRING,
        "replace all instances of one string with another in an overall parent string",
    ),
    FunctionEntry(
        "to_upper",
        (STRING,),
        _to_upper,
        STRING,
        "takes in a string and outputs the same string with all upper-case letters",
    ),
    FunctionEntry(
        "to_lower",
        (STRING,),
        _to_lower,
        STRING,
        "takes in a string and outputs the same string with all lower-case letters",
    ),
    FunctionEntry(
        "trim",
        (STRING, STRING),
        _trim,
        STRING,
        "trims both ends of the source string by characters appearing in the second "
        "string",
    ),
    FunctionEntry(
        "trim_prefix",
        (STRING, STRING),
        _trim_prefix,
        STRING,
        "trims the second string prefix from the first string if the first string "
        "starts with the prefix",
    ),
    FunctionEntry(
        "split",
        (STRING, STRING),
        _split,
        STRINGS,
        "splits the first string when the second string is found and converts it into "
        "an array ",
    ),
    FunctionEntry(
        "pattern_match",
        (STRING, TEXTUAL),
        _pattern_match,
        BOOL,
        "'*' matches zero or more alphanumeric characters, '?' matches a single "
        "alphanumeric character",
    ),
    FunctionEntry(
        "to_boolean",
        (STRING,),
        _to_boolean,
        BOOL,
        "It returns true or false for any string, such as 'True', 'TruE', 'False', "
        "'FAlse', 'faLSE', etc.",
    ),
    FunctionEntry(
        "path_canonicalize",
        (STRING,),
        _path_canonicalize,
        STRING,
        "normalizes or canonicalizes a given path by removing excess slashes",
    ),
    FunctionEntry(
        "truncate",
        (STRING, NUMBER),
        _truncate,
        STRING,
        "length argument must be enclosed in backticks; ex. "
        '"{{request.object.metadata.name | truncate(@, `9`)}}"',
    ),
    FunctionEntry(
        "semver_compare",
        (STRING, STRING),
        _semver_compare,
        BOOL,
        "compares two strings which comply with the semantic versioning schema and "
        "outputs a boolean response as to the position of the second relative to the "
        "first",
    ),
)
