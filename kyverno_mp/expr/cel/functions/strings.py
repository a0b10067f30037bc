"""Implement the strings extension, version 2.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: cel-go ext/strings.go; docs/behaviour/cel 11. Positions count code points.
"""

from typing import Final

from kyverno_mp.expr.cel.functions.text_format import format_text
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import (
    LIST_BYTES,
    WIDE_BYTES,
    CelFailed,
    Meter,
    Value,
    text_bytes,
    type_name,
)

_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_QUOTED: Final = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\a", "\\a"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\v", "\\v"),
)
_UTF8: Final = ("utf-8", "surrogatepass")
_SHORT: Final = 16
"""The longest substring that is searched backwards without reversing the text."""
_PIECE_BYTES: Final = 72
"""The memory of one string of a few characters in a list."""


def _out_of_range(position: int) -> CelFailed:
    return CelFailed(f"index out of range: {position}")


def _char_at(_meter: Meter, string: str, position: int) -> str:
    if not 0 <= position <= len(string):
        raise _out_of_range(position)
    return string[position : position + 1]


def _charge_search(meter: Meter, string: str, part: str) -> None:
    meter.charge(((len(string) + 9) // 10) * ((len(part) + 9) // 10))


def _index_of(meter: Meter, string: str, part: str, offset: int = 0) -> int:
    _charge_search(meter, string, part)
    if not part:
        # KYVERNO: cel-go does not check the offset if the substring is empty.
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return string.find(part, min(offset, len(string)))


def _last_index_of(meter: Meter, string: str, part: str) -> int:
    _charge_search(meter, string, part)
    return _rfind(meter, string, part, len(string))


def _last_index_before(meter: Meter, string: str, part: str, offset: int) -> int:
    _charge_search(meter, string, part)
    if not part:
        # KYVERNO: as in _index_of.
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    if offset >= len(string):
        return -1
    return _rfind(meter, string, part, offset + len(part))


def _rfind(meter: Meter, string: str, part: str, end: int) -> int:
    if len(part) <= _SHORT:
        return string.rfind(part, 0, end)
    # PERF: Python searches backwards in quadratic time, but forwards in linear time.
    meter.charge_bytes(2 * text_bytes(len(string), string))
    reversed_at = string[:end][::-1].find(part[::-1])
    return (
        reversed_at
        if reversed_at < 0
        else min(end, len(string)) - reversed_at - len(part)
    )


def _lower(meter: Meter, string: str) -> str:
    meter.charge_bytes(3 * text_bytes(len(string), string))
    # PERF: ``bytes.lower`` changes ASCII letters only, and all of them in one call.
    return string.encode(*_UTF8).lower().decode(*_UTF8)


def _upper(meter: Meter, string: str) -> str:
    meter.charge_bytes(3 * text_bytes(len(string), string))
    return string.encode(*_UTF8).upper().decode(*_UTF8)


def _replace(meter: Meter, string: str, old: str, new: str, limit: int = -1) -> str:
    meter.charge_text(2 * len(string))
    count = string.count(old)
    if limit >= 0:
        count = min(count, limit)
    meter.charge_text(4 * count)
    size = max(len(string) + count * (len(new) - len(old)), 0)
    meter.charge_bytes(text_bytes(size, string, new))
    return string.replace(old, new, limit)


def _split(meter: Meter, string: str, separator: str, limit: int = -1) -> list[str]:
    meter.charge_text(len(string))
    if limit == 0:
        return []
    count = string.count(separator) + 1
    if limit > 0:
        count = min(count, limit)
    meter.charge_bytes(text_bytes(len(string), string) + count * _PIECE_BYTES)
    if not separator:
        parts = (
            list(string) if limit < 0 else [*string[: limit - 1], string[limit - 1 :]]
        )
        parts = [part for part in parts if part]
    else:
        parts = string.split(separator, limit - 1 if limit > 0 else -1)
    return parts


def _substring(meter: Meter, string: str, start: int) -> str:
    if not 0 <= start <= len(string):
        raise _out_of_range(start)
    meter.charge_bytes(text_bytes(len(string) - start, string))
    return string[start:]


def _substring_range(meter: Meter, string: str, start: int, end: int) -> str:
    if start > end:
        raise CelFailed(f"invalid substring range. start: {start}, end: {end}")
    for position in (start, end):
        if not 0 <= position <= len(string):
            raise _out_of_range(position)
    meter.charge_bytes(text_bytes(end - start, string))
    return string[start:end]


def _trim(meter: Meter, string: str) -> str:
    meter.charge_bytes(text_bytes(len(string), string))
    meter.charge_text(4 * len(string))
    return string.strip(_SPACE)


def _quote(meter: Meter, string: str) -> str:
    meter.charge_bytes(4 * text_bytes(len(string), string))
    for char, escaped in _QUOTED:
        string = string.replace(char, escaped)
    return f'"{string}"'


def _join(meter: Meter, items: list[Value], separator: str = "") -> str:
    meter.charge(4 * len(items))
    size = 0
    is_wide = not separator.isascii()
    for item in items:
        if type(item) is not str:
            raise CelFailed(f"join: invalid input: {type_name(item)}")
        size += len(item) + len(separator)
        is_wide = is_wide or not item.isascii()
    meter.charge_bytes(LIST_BYTES + size * (WIDE_BYTES if is_wide else 1))
    return separator.join(items)


OVERLOADS = (
    member("charAt(string, int) -> string", _char_at, cost=10),
    member("indexOf(string, string) -> int", _index_of, cost=10),
    member("indexOf(string, string, int) -> int", _index_of, cost=10),
    member("lastIndexOf(string, string) -> int", _last_index_of, cost=10),
    member("lastIndexOf(string, string, int) -> int", _last_index_before, cost=10),
    member("lowerAscii(string) -> string", _lower, cost=8),
    member("upperAscii(string) -> string", _upper, cost=8),
    member("replace(string, string, string) -> string", _replace, cost=10),
    member("replace(string, string, string, int) -> string", _replace, cost=10),
    member("split(string, string) -> list(string)", _split, cost=10),
    member("split(string, string, int) -> list(string)", _split, cost=10),
    member("substring(string, int) -> string", _substring, cost=10),
    member("substring(string, int, int) -> string", _substring_range, cost=10),
    member("trim(string) -> string", _trim, cost=10),
    member("format(string, list(dyn)) -> string", format_text, cost=20),
    member("join(list(string)) -> string", _join, cost=10),
    member("join(list(string), string) -> string", _join, cost=10),
    function("strings.quote(string) -> string", _quote, cost=20),
)
