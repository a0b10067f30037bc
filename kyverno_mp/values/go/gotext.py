"""Print JSON data like Go: fmt.Sprint, strconv floats, json.Marshal, type names.

Room: values. Takes: Json. Gives: strings that equal the Go program's byte for byte.
Next: expr (conversions, error messages), expr/conditions, program (messages).
Source: docs/behaviour/engine 0.3; Go's fmt, strconv and encoding/json.
"""

import math
import re
import struct
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Final, TypeAlias

import re2

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json

_HTML: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_LINES: Final = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029"})
_UNUSUAL: Final = re2.compile("[<>&\u2028\u2029]")
_NO_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_G_EXPONENT_MIN: Final = -4
_G_EXPONENT_MAX: Final = 6
"""Go uses this precision to choose the notation of the shortest digits."""
Charge: TypeAlias = Callable[[int], None]
"""Called with the cost of the next part of a walk; raises an error to stop it."""
_Write: TypeAlias = Callable[[str], object]


def folded(name: str) -> str:
    """Return the form in which encoding/json compares names of fields.

    GO: letters are folded one by one, so that the long s equals s.
    """
    if name.isascii():
        return name.lower()
    return "".join(
        low if len(low := character.casefold()) == 1 else character
        for character in name
    )


_ITEM_CHARACTERS: Final = 8
"""The number of characters printed per container item in addition to its text."""
_PIECE_BYTES: Final = 8
_QUOTED_PER_STEP: Final = 16
_PORTION: Final = 4096
"""The number of characters of a long string that are quoted at a time."""


class GoValue:
    """A Go value that is not JSON data, such as a struct; it prints itself.

    ``go_name``: its type as printed by ``%T``.
    """

    __slots__ = ()
    go_name: str

    def go_text(self) -> str:
        """Print like fmt.Sprint."""
        raise NotImplementedError

    def go_json(self, *, escape_html: bool) -> str:
        """Print like json.Marshal."""
        raise NotImplementedError


def sprint(value: Json, charge: Charge | None = None) -> str:
    """Print like fmt.Sprint (``%v``): ``map[a:1 b:[x <nil>]]``, ``1e+06``, ``true``.

    ``charge`` is called with the sizes of containers and strings before they are
    printed.
    """
    kind = type(value)
    if kind is str:
        if charge is not None:
            charge(len(value))
        return str(value)
    if kind is float:
        return float_g(value)
    if value is None:
        return "<nil>"
    if kind is bool:
        return "true" if value else "false"
    if isinstance(value, GoValue):
        return value.go_text()
    if isinstance(value, (list, dict)) and charge is not None:
        charge(_ITEM_CHARACTERS * len(value))
    if isinstance(value, list):
        return "[" + " ".join([sprint(item, charge) for item in value]) + "]"
    if kind is dict:
        pairs = [f"{key}:{sprint(value[key], charge)}" for key in sorted(value)]
        return "map[" + " ".join(pairs) + "]"
    return str(value)


def _digits(value: float) -> tuple[str, str, int]:
    """Split a finite float into sign, shortest digits and decimal exponent.

    Shape: 1234.5 becomes ``("", "12345", 3)``, i.e. 1.2345 times 10**3.
    """
    mantissa, _, exponent = repr_e(value).partition("e")
    sign = ""
    if mantissa[0] == "-":
        sign, mantissa = "-", mantissa[1:]
    digits = mantissa.replace(".", "").rstrip("0") or "0"
    return sign, digits, int(exponent)


def repr_e(value: float) -> str:
    """Print the shortest digits that parse back to ``value``, with an exponent."""
    printed = repr(value)
    if "e" in printed:
        return printed
    sign = "-" if printed[0] == "-" else ""
    integer, _, fraction = printed.lstrip("-").partition(".")
    digits = integer + fraction
    stripped = digits.lstrip("0")
    if not stripped:
        return f"{sign}0e0"
    exponent = len(integer) - 1 - (len(digits) - len(stripped))
    return f"{sign}{stripped[0]}.{stripped[1:] or '0'}e{exponent}"


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def _with_exponent(sign: str, digits: str, exponent: int, mark: str) -> str:
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    size = abs(exponent)
    return f"{sign}{digits[0]}{fraction}{mark}{'-' if exponent < 0 else '+'}{size:02d}"


def _plain(sign: str, digits: str, exponent: int) -> str:
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    integer = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{integer}.{fraction}" if fraction else sign + integer


def float_g(value: float) -> str:
    """Print like ``%v``: exponent form if the exponent is < -4 or >= 6.

    KYVERNO: 0.3 - 100000 becomes ``100000``, 1234567 becomes ``1.234567e+06``.
    """
    special = _special(value)
    if special is not None:
        return special
    sign, digits, exponent = _digits(value)
    if not _G_EXPONENT_MIN <= exponent < _G_EXPONENT_MAX:
        return _with_exponent(sign, digits, exponent, "e")
    return _plain(sign, digits, exponent)


def float_e(value: float) -> str:
    """Print like strconv ``'E'`` with the shortest digits: ``1E+00``, ``1.5E+03``."""
    return _special(value) or _with_exponent(*_digits(value), "E")


def float_f(value: float) -> str:
    """Print like ``%f``, with six decimals."""
    return _special(value) or f"{value:f}"


def float32_plain(value: float) -> str:
    """Print like strconv ``'f'`` with 32 bits: the shortest digits of a float32."""
    try:
        packed = struct.pack("f", value)
    except OverflowError:
        return "+Inf" if value > 0 else "-Inf"
    special = _special(value)
    if special is not None:
        return special
    narrowed = struct.unpack("f", packed)[0]
    for precision in range(9):
        printed = f"{narrowed:.{precision}e}"
        if struct.pack("f", float(printed)) == packed:
            break
    return _plain(*_digits(float(printed)))


def float_json(value: float) -> str:
    """Print like encoding/json: ``1``, ``1.5``, ``1e+21``, ``1e-7``.

    Raises: ExpressionFailed (values.unsupported) for NaN and infinities.
    """
    special = _special(value)
    if special is not None:
        raise ExpressionFailed(
            "values.unsupported", f"json: unsupported value: {special}"
        )
    if value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - plain digits
        printed = str(int(value))
        return "-0" if printed == "0" and math.copysign(1.0, value) < 0 else printed
    sign, digits, exponent = _digits(value)
    if -6 <= exponent < 21:  # noqa: PLR2004 - the limits of ECMAScript
        return _plain(sign, digits, exponent)
    printed = _with_exponent(sign, digits, exponent, "e")
    if printed[-4:-1] == "e-0":
        printed = printed[:-2] + printed[-1]
    return printed


def json_text(
    value: Json,
    *,
    escape_html: bool = True,
    charge: Charge | None = None,
    visit: Charge | None = None,
) -> str:
    """Print like json.Marshal: compact, with sorted keys and, by default, HTML escapes.

    ``charge`` is called with the cost of each piece before it is written, ``visit``
    with the steps of each piece.
    Raises: ExpressionFailed (values.unsupported) for NaN and infinities.
    """
    parts: list[str] = []
    write: _Write = parts.append
    if charge is not None:

        def write(piece: str) -> None:
            charge(len(piece) * 2 + _PIECE_BYTES)
            if visit is not None:
                visit(1 + len(piece) // _QUOTED_PER_STEP)
            parts.append(piece)

    _write_json(value, write, escape_html)
    return "".join(parts)


def json_string(string: str, *, escape_html: bool = True) -> str:
    """Print one string like encoding/json, including the quotes."""
    quoted = encode_basestring(string)
    try:
        is_unusual = _UNUSUAL.search(quoted) is not None
    except UnicodeEncodeError:
        # GO: invalid UTF-8 is written as an escape, but U+FFFD itself is not escaped.
        quoted, is_unusual = _NO_CHARACTER.sub("\\\\ufffd", quoted), True
    if is_unusual:
        if escape_html:
            quoted = quoted.translate(_HTML)
        quoted = quoted.translate(_LINES)
    return quoted


def replaced_bytes(string: str) -> str:
    """Replace invalid characters with U+FFFD."""
    return _NO_CHARACTER.sub("\ufffd", string)


def text_bytes(string: str) -> bytes:
    """Return the UTF-8 of a string, including the invalid bytes kept in it."""
    try:
        return string.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return replaced_bytes(string).encode()


def _write_text(string: str, write: _Write, html: bool) -> None:  # noqa: FBT001 - private
    """Write one string, in portions if it is long: quoting can multiply it by six."""
    if len(string) <= _PORTION:
        write(json_string(string, escape_html=html))
        return
    write('"')
    for start in range(0, len(string), _PORTION):
        write(json_string(string[start : start + _PORTION], escape_html=html)[1:-1])
    write('"')


def _write_json(value: Json, write: _Write, html: bool) -> None:  # noqa: FBT001 - private
    kind = type(value)
    if kind is str:
        _write_text(value, write, html)
    elif value is None:
        write("null")
    elif kind is bool:
        write("true" if value else "false")
    elif kind is float:
        write(float_json(value))
    elif isinstance(value, GoValue):
        write(value.go_json(escape_html=html))
    elif isinstance(value, list):
        write("[")
        for index, item in enumerate(value):
            if index:
                write(",")
            _write_json(item, write, html)
        write("]")
    elif kind is dict:
        write("{")
        for index, key in enumerate(sorted(value)):
            if index:
                write(",")
            _write_text(key, write, html)
            write(":")
            _write_json(value[key], write, html)
        write("}")
    else:
        write(str(value))


_TYPE_NAMES: Final = {
    type(None): "<nil>",
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def go_type(value: Json) -> str:
    """Return the Go type of a JSON value as printed by ``%T``."""
    return _TYPE_NAMES.get(type(value)) or type(value).__name__
