"""Implement the standard functions: size, conversions, string tests, arithmetic.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: the CEL language definition; docs/behaviour/cel 12c (conversions).
"""

import math
import re
from typing import Final

from kyverno_mp.expr.cel import operators
from kyverno_mp.expr.cel.functions.regexes import SEARCH_COST, matches
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.operators import int_result, uint_result
from kyverno_mp.expr.cel.values import (
    INT_MAX,
    INT_MIN,
    LIST_BYTES,
    UINT_MAX,
    WIDE_BYTES,
    CelFailed,
    Meter,
    TypeValue,
    Uint,
    Value,
    text_bytes,
    type_name,
)
from kyverno_mp.values.go.gofloat import parse_float
from kyverno_mp.values.go.gotext import float_g

_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def _size(_meter: Meter, value: Value) -> int:
    return len(value)


def _conversion_error(source: str, target: str) -> CelFailed:
    return CelFailed(f"type conversion error from '{source}' to '{target}'")


def _text_to_int(_meter: Meter, string: str) -> int:
    if _INTEGER.fullmatch(string) and INT_MIN <= int(string) <= INT_MAX:
        return int(string)
    raise _conversion_error("string", "int")


def _text_to_uint(_meter: Meter, string: str) -> Uint:
    if string[:1].isdigit() and _INTEGER.fullmatch(string) and int(string) <= UINT_MAX:
        return Uint(string)
    raise _conversion_error("string", "uint")


def _text_to_double(meter: Meter, string: str) -> float:
    meter.charge(len(string))
    number = parse_float(string)
    if number is not None:
        return number
    raise _conversion_error("string", "double")


def _text_to_bool(_meter: Meter, string: str) -> bool:
    value = _BOOLS.get(string)
    if value is None:
        raise _conversion_error("string", "bool")
    return value


def _double_to_int(_meter: Meter, value: float) -> int:
    if not INT_MIN < value < INT_MAX or math.isnan(value):
        raise CelFailed("integer overflow")
    return int(value)


def _double_to_uint(_meter: Meter, value: float) -> Uint:
    if not 0 <= value <= UINT_MAX or math.isnan(value) or value >= 2.0**64:
        raise CelFailed("unsigned integer overflow")
    return Uint(value)


def double_text(value: float) -> str:
    """Print like ``string(double)``: Go's %g with the shortest digits.

    KYVERNO: 12c - 1000000.0 becomes ``1e+06``.
    """
    if math.isnan(value):
        return "NaN"
    return float_g(value)


def _bytes_to_text(meter: Meter, value: bytes) -> str:
    meter.charge_bytes(LIST_BYTES + WIDE_BYTES * len(value))
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelFailed("invalid UTF-8 in bytes, cannot convert to string") from None


def _text_to_bytes(meter: Meter, string: str) -> bytes:
    meter.charge_bytes(text_bytes(len(string), string))
    return string.encode("utf-8", "surrogatepass")


def _contains(meter: Meter, string: str, part: str) -> bool:
    meter.charge(((len(string) + 9) // 10) * ((len(part) + 9) // 10))
    return part in string


def _starts_with(meter: Meter, string: str, part: str) -> bool:
    meter.charge_text(len(part))
    return string.startswith(part)


def _ends_with(meter: Meter, string: str, part: str) -> bool:
    meter.charge_text(len(part))
    return string.endswith(part)


def _same(_meter: Meter, value: Value) -> Value:
    return value


def _type(_meter: Meter, value: Value) -> TypeValue:
    return TypeValue(type_name(value))


def _negate_int(_meter: Meter, value: int) -> int:
    return int_result(-value)


OVERLOADS = (
    *(
        declared(f"size({kind}) -> int", _size)
        for kind in ("string", "bytes", "list(A)", "map(A, B)")
        for declared in (function, member)
    ),
    member("contains(string, string) -> bool", _contains),
    member("startsWith(string, string) -> bool", _starts_with),
    member("endsWith(string, string) -> bool", _ends_with),
    function("matches(string, string) -> bool", matches, cost=SEARCH_COST),
    function("type(A) -> type(A)", _type, cost=10),
    function("dyn(A) -> dyn", _same),
    function("int(int) -> int", _same),
    function("int(uint) -> int", lambda _m, v: int_result(int(v))),
    function("int(double) -> int", _double_to_int),
    function("int(string) -> int", _text_to_int, cost=15),
    function("uint(uint) -> uint", _same),
    function("uint(int) -> uint", lambda _m, v: uint_result(v), cost=10),
    function("uint(double) -> uint", _double_to_uint),
    function("uint(string) -> uint", _text_to_uint, cost=20),
    function("double(double) -> double", _same),
    function("double(int) -> double", lambda _m, v: float(v)),
    function("double(uint) -> double", lambda _m, v: float(v)),
    function("double(string) -> double", _text_to_double, cost=20),
    function("string(string) -> string", _same),
    function("string(bool) -> string", lambda _m, v: "true" if v else "false"),
    function("string(int) -> string", lambda _m, v: str(v)),
    function("string(uint) -> string", lambda _m, v: str(int(v)), cost=10),
    function("string(double) -> string", lambda _m, v: double_text(v), cost=60),
    function("string(bytes) -> string", _bytes_to_text, cost=10),
    function("bytes(bytes) -> bytes", _same),
    function("bytes(string) -> bytes", _text_to_bytes),
    function("bool(bool) -> bool", _same),
    function("bool(string) -> bool", _text_to_bool),
    function("+(int, int) -> int", operators.add_int, cost=10),
    function("+(uint, uint) -> uint", lambda _m, a, b: uint_result(a + b), cost=10),
    function("+(double, double) -> double", lambda _m, a, b: a + b, cost=10),
    function("+(string, string) -> string", operators.add_text),
    function("+(bytes, bytes) -> bytes", operators.add_text),
    function("+(list(A), list(A)) -> list(A)", operators.add_list),
    function("-(int, int) -> int", lambda _m, a, b: int_result(a - b), cost=10),
    function(
        "-(uint, uint) -> uint", lambda _m, a, b: uint_result(int(a) - int(b)), cost=8
    ),
    function("-(double, double) -> double", lambda _m, a, b: a - b, cost=10),
    function("*(int, int) -> int", lambda _m, a, b: int_result(a * b), cost=10),
    function("*(uint, uint) -> uint", lambda _m, a, b: uint_result(a * b), cost=10),
    function("*(double, double) -> double", operators.multiply_double, cost=10),
    function("/(int, int) -> int", operators.divide_int, cost=10),
    function("/(uint, uint) -> uint", operators.divide_uint, cost=10),
    function("/(double, double) -> double", operators.divide_double, cost=10),
    function("%(int, int) -> int", operators.modulo_int, cost=10),
    function("%(uint, uint) -> uint", operators.modulo_uint, cost=10),
    function("-_(int) -> int", _negate_int, cost=10),
    function("-_(double) -> double", lambda _m, v: -v, cost=10),
)
