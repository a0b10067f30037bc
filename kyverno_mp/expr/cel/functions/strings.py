"""The strings extension, version 2.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: catalogue.py.
May touch: nothing outside its arguments.
Source: cel-go ext/strings.go; spec/cel.md 11. Positions count code points.
"""

from typing import Final

from kyverno_mp.expr.cel.functions.text_format import format_text
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import POINTER_BYTES, CelFailed, Meter, Value

_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_LOWER: Final = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
)
_UPPER: Final = str.maketrans(
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _out_of_range(position: int) -> CelFailed:
    return CelFailed(f"index out of range: {position}")


def _char_at(_meter: Meter, text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


def _charge_search(meter: Meter, text: str, part: str) -> None:
    meter.charge(((len(text) + 9) // 10) * ((len(part) + 9) // 10))


def _index_of(meter: Meter, text: str, part: str, offset: int = 0) -> int:
    _charge_search(meter, text, part)
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    return text.find(part, offset)


def _last_index_of(meter: Meter, text: str, part: str) -> int:
    _charge_search(meter, text, part)
    return text.rfind(part)


def _last_index_before(meter: Meter, text: str, part: str, offset: int) -> int:
    _charge_search(meter, text, part)
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _translated(table: dict[int, int]) -> Value:
    def run(meter: Meter, text: str) -> str:
        meter.charge_bytes(len(text))
        return text.translate(table)

    return run


def _replace(meter: Meter, text: str, old: str, new: str, limit: int = -1) -> str:
    meter.charge_text(len(text))
    count = text.count(old)
    if limit >= 0:
        count = min(count, limit)
    meter.charge_bytes(max(len(text) + count * (len(new) - len(old)), 0))
    return text.replace(old, new, limit)


def _split(meter: Meter, text: str, separator: str, limit: int = -1) -> list[str]:
    meter.charge_text(len(text))
    if limit == 0:
        return []
    if not separator:
        parts = list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
        parts = [part for part in parts if part]
    else:
        parts = text.split(separator, limit - 1 if limit > 0 else -1)
    meter.charge_bytes(len(text) + len(parts) * POINTER_BYTES)
    return parts


def _substring(meter: Meter, text: str, start: int) -> str:
    meter.charge_text(len(text))
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_range(meter: Meter, text: str, start: int, end: int) -> str:
    meter.charge_text(len(text))
    if start > end:
        raise CelFailed(f"invalid substring range. start: {start}, end: {end}")
    for position in (start, end):
        if not 0 <= position <= len(text):
            raise _out_of_range(position)
    return text[start:end]


def _trim(meter: Meter, text: str) -> str:
    meter.charge_text(len(text))
    return text.strip(_SPACE)


def _quote(meter: Meter, text: str) -> str:
    meter.charge_bytes(2 * len(text))
    return f'"{text.translate(_QUOTED)}"'


def _join(meter: Meter, items: list[Value], separator: str = "") -> str:
    size = 0
    for item in items:
        if type(item) is not str:
            raise CelFailed(f"join: invalid input: {item}")
        size += len(item) + len(separator)
    meter.charge_bytes(size)
    return separator.join(items)


OVERLOADS = (
    member("charAt(string, int) -> string", _char_at),
    member("indexOf(string, string) -> int", _index_of),
    member("indexOf(string, string, int) -> int", _index_of),
    member("lastIndexOf(string, string) -> int", _last_index_of),
    member("lastIndexOf(string, string, int) -> int", _last_index_before),
    member("lowerAscii(string) -> string", _translated(_LOWER)),
    member("upperAscii(string) -> string", _translated(_UPPER)),
    member("replace(string, string, string) -> string", _replace),
    member("replace(string, string, string, int) -> string", _replace),
    member("split(string, string) -> list(string)", _split),
    member("split(string, string, int) -> list(string)", _split),
    member("substring(string, int) -> string", _substring),
    member("substring(string, int, int) -> string", _substring_range),
    member("trim(string) -> string", _trim),
    member("format(string, list(dyn)) -> string", format_text),
    member("join(list(string)) -> string", _join),
    member("join(list(string), string) -> string", _join),
    function("strings.quote(string) -> string", _quote),
)
