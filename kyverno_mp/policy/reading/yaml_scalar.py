"""Resolve a plain YAML scalar like Go's YAML 1.1 library.

Room: policy. Takes: the text of a scalar, or a mapping key. Gives: None, bool, int,
float or str. Next: policy/reading/load.py.
Source: sigs.k8s.io/yaml (goyaml.v2 resolve.go, then JSON); docs/behaviour/cli 4.
"""

import math
import re
import struct
from typing import Final

from kyverno_mp.values.go.gofloat import without_underscores
from kyverno_mp.values.go.yaml_int import INT64_MAX, INT64_MIN, yaml_int
from kyverno_mp.values.jsonvalue import Json

_WORDS: Final[dict[str, Json]] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES"], True),
    **dict.fromkeys(["true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO"], False),
    **dict.fromkeys(["false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], math.nan),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], math.inf),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], -math.inf),
}
_KINDS: Final = {type(None): "null", bool: "bool", float: "float", str: "str"}
_NUMBER_START: Final = frozenset("+-.0123456789")

# SAFETY: constant patterns that match in linear time, without backtracking.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_GO_FLOAT = re.compile(r"[-+]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][-+]?[0-9]+)?")
_DIGITS_MAX: Final = 400
"""Longer than any 64-bit number in any base, to limit the input of float()."""


def resolve(scalar: str) -> Json:
    """Return the value of a plain scalar: a str unless it is a keyword or number.

    Whole floats become ints, because Kubernetes converts documents to JSON, where
    ``1e3`` is printed as ``1000`` and read as an integer. Timestamps stay strings.
    """
    if scalar in _WORDS:
        return _WORDS[scalar]
    if scalar[0] not in _NUMBER_START or len(scalar) > _DIGITS_MAX:
        return scalar
    if scalar[0] == ".":
        # GO: strconv.ParseFloat accepts underscores only between digits.
        number = without_underscores(scalar)
        is_number = number is not None and _GO_FLOAT.fullmatch(number)
        return _float(number or "", scalar) if is_number else scalar
    value = yaml_int(scalar)
    if value is not None:
        return in_range(value)
    plain = scalar.replace("_", "")
    return _float(plain, scalar) if _FLOAT.fullmatch(plain) else scalar


def kind_of(scalar: str) -> str:
    """Return the tag that a plain scalar resolves to: null, bool, int, float or str."""
    value = resolve(scalar)
    if type(value) is not int:
        return _KINDS[type(value)]
    return "float" if yaml_int(scalar) is None else "int"


def _float(plain: str, scalar: str) -> Json:
    """Return the number, or the text if it exceeds a 64-bit float, as in Go."""
    value = float(plain)
    return scalar if math.isinf(value) else whole(value)


def in_range(value: int) -> Json:
    """Return a 64-bit int unchanged, and a larger int as a float, as in Go."""
    return value if INT64_MIN <= value <= INT64_MAX else float(value)


def whole(value: float) -> Json:
    """Convert a float without a fraction to an int, like a pass through Go's JSON."""
    if value.is_integer() and INT64_MIN <= value <= INT64_MAX:
        return int(value)
    return value


def key_text(key: Json) -> str | None:
    """Return the JSON key for a YAML key, as in Kubernetes; None for an invalid key."""
    if type(key) is str:
        return key
    if type(key) is bool:
        return "true" if key else "false"
    if type(key) is int:
        return str(key)
    if type(key) is float:
        return _short_float(key)
    return None


def _short_float(value: float) -> str:
    # KYVERNO: keys are printed with 32-bit precision (sigs.k8s.io/yaml).
    if math.isnan(value) or math.isinf(value):
        return str(value)
    try:
        packed = struct.pack("f", value)
    except OverflowError:
        return "+Inf" if value > 0 else "-Inf"
    for digits in range(1, 10):
        candidate = f"{value:.{digits}g}"
        if struct.pack("f", float(candidate)) == packed:
            return candidate
    return f"{value:.9g}"
