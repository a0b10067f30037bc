"""Parse, compare, compute and print Kubernetes quantities.

Room: values. Takes: strings such as ``100m`` or ``1.5Gi``. Gives: exact, comparable
Quantity values that keep their format. Next: expr, expr/pattern, expr/conditions.
Source: docs/behaviour/engine 0.3, 9.3; Kubernetes' resource.Quantity.
"""

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import re2

from kyverno_mp.errors import ExpressionFailed

Format: TypeAlias = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

FORMAT_ERROR: Final = (
    "quantities must match the regular expression "
    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
NUMERIC_ERROR: Final = "unable to parse numeric part of quantity"
SUFFIX_ERROR: Final = "unable to parse quantity's suffix"

_DECIMAL: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {
    0: "",
    **{exponent: suffix for suffix, exponent in _BINARY.items()},
}
_SCAN: Final = re2.compile(
    r"([+-]?)(0*)([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)"
)
_CHARACTERS: Final = "0123456789.+-eEinumkKMGTP"
_SHORT_MAX: Final = 32
_DIGITS_MAX: Final = 500
"""The maximum number of digits; str() of an int rejects more than 4300 by default."""
_EXPONENT_SPAN_MAX: Final = 500
"""The maximum power of ten that one computation expands; Go has no limit and would run
out of memory."""
_INT64_MAX: Final = (1 << 63) - 1
_INT64_DIGITS: Final = 18
_NANO: Final = -9


class Quantity:
    """An exact decimal ``unscaled * 10**exponent`` with its original format."""

    __slots__ = ("_text", "exponent", "format", "is_big", "unscaled")
    type_name: Final = "kubernetes.Quantity"
    """The name of the type in CEL."""

    def __init__(
        self, unscaled: int, exponent: int, form: Format, original: str = ""
    ) -> None:
        self.unscaled = unscaled
        self.exponent = exponent
        self.format: Format = form
        self._text = original
        self.is_big = False
        """Whether Go stores the quantity as a decimal, not as an int64 with a scale."""

    def compare(self, quantity: "Quantity") -> int:
        """Return -1, 0 or 1."""
        mine, compared = self.unscaled, quantity.unscaled
        if self.exponent == quantity.exponent:
            return (mine > compared) - (mine < compared)
        sign = (mine > 0) - (mine < 0)
        other_sign = (compared > 0) - (compared < 0)
        if sign != other_sign or sign == 0:
            return (sign > other_sign) - (sign < other_sign)
        # The sizes are compared first, so that 1e1000000000 is never expanded.
        size = len(str(abs(mine))) + self.exponent
        other_size = len(str(abs(compared))) + quantity.exponent
        if size != other_size:
            return sign if size > other_size else -sign
        least = min(self.exponent, quantity.exponent)
        mine *= _power(self.exponent - least)
        compared *= _power(quantity.exponent - least)
        return (mine > compared) - (mine < compared)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __lt__(self, quantity: "Quantity") -> bool:
        return self.compare(quantity) < 0

    def __le__(self, quantity: "Quantity") -> bool:
        return self.compare(quantity) <= 0

    def __gt__(self, quantity: "Quantity") -> bool:
        return self.compare(quantity) > 0

    def __ge__(self, quantity: "Quantity") -> bool:
        return self.compare(quantity) >= 0

    def __hash__(self) -> int:
        unscaled, exponent = _without_factors(self.unscaled, 10)
        return hash((unscaled, exponent + self.exponent if unscaled else 0))

    def __repr__(self) -> str:
        return f"Quantity({self.text()!r})"

    def text(self) -> str:
        """Print in canonical form, like Quantity.String."""
        if not self._text:
            self._text = _canonical_text(self)
        return self._text

    def approximate(self) -> float:
        """Convert like AsApproximateFloat64, with one rounding per factor."""
        try:
            base = float(self.unscaled)
        except OverflowError:
            base = float("inf") if self.unscaled > 0 else float("-inf")
        return base * float(f"1e{self.exponent}") if self.exponent else base

    def as_int64(self) -> int | None:
        """Return the value like AsInt64; None if it is not a whole int64.

        KYVERNO: also None if it was written with a fraction, as ``1.0`` and ``1.5Gi``,
        or in thousandths or smaller units, as ``1000m``.
        """
        if self.is_big or self.exponent < 0:
            return None
        if self.exponent > _INT64_DIGITS:
            return None if self.unscaled else 0
        value = self.unscaled * _power(self.exponent)
        return value if _is_int64(value) else None

    def __add__(self, quantity: "Quantity") -> "Quantity":
        return _add(self, quantity.unscaled, quantity)

    def __sub__(self, quantity: "Quantity") -> "Quantity":
        return _add(self, -quantity.unscaled, quantity)

    def __mul__(self, quantity: "Quantity") -> "Quantity":
        unscaled = self.unscaled * quantity.unscaled
        return Quantity(unscaled, self.exponent + quantity.exponent, self.format)

    def divide(self, quantity: "Quantity") -> "Quantity":
        """Divide, truncated to the finer of the two scales."""
        exponent = min(self.exponent, quantity.exponent)
        shift = self.exponent - quantity.exponent - exponent
        _check_span(shift)
        numerator = abs(self.unscaled) * 10 ** max(shift, 0)
        denominator = abs(quantity.unscaled) * 10 ** max(-shift, 0)
        size = numerator // denominator
        negative = (self.unscaled < 0) != (quantity.unscaled < 0)
        return Quantity(-size if negative else size, exponent, self.format)


def parse_quantity(value: str) -> Quantity | None:
    """Parse a quantity; None if Kubernetes rejects the text.

    KYVERNO: 0.3 - ``-``, ``.``, ``m`` and ``Ki`` are legal and zero.
    """
    # PERF: other characters rule out nearly all names and images. Of the rest, rules
    # compare the same text again and again.
    if not value or value.strip(_CHARACTERS):
        return None
    parsed = _parse_short(value) if len(value) <= _SHORT_MAX else _parse(value)
    return parsed if type(parsed) is Quantity else None


def quantity_error(value: str) -> str:
    """Return Kubernetes' error message for a string that ``parse_quantity`` rejects."""
    parsed = _parse(value)
    return parsed if type(parsed) is str else ""


def _parse(value: str) -> Quantity | str:
    if value == "0":
        return Quantity(0, 0, "DecimalSI", "0")
    match = _SCAN.fullmatch(value) if 0 < len(value) <= _DIGITS_MAX else None
    if match is None:
        return FORMAT_ERROR
    sign, zeros, number, point, fraction, suffix = match.groups()
    fraction = fraction or ""
    meaning = _interpret(suffix)
    if meaning is None:
        return SUFFIX_ERROR
    number = number or "0"
    factor = -1 if sign == "-" else 1
    fast = _parse_fast(value, factor, (number, fraction), meaning)
    if fast is not None:
        return fast
    digits = zeros + number if zeros or match.group(3) else ""
    if not digits and not (point and fraction):
        return NUMERIC_ERROR
    return _parse_slow(factor, int("0" + digits + fraction), -len(fraction), meaning)


_parse_short = lru_cache(maxsize=1024)(_parse)
"""SAFETY: a quantity is never changed, and a short text takes few bytes."""


def _interpret(suffix: str) -> tuple[int, Format] | None:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], "DecimalSI"
    if suffix in _BINARY:
        return _BINARY[suffix], "BinarySI"
    if len(suffix) > 1 and suffix[0] in "eE":
        digits = suffix[1:]
        if not digits.lstrip("+-").isdecimal() or len(digits.lstrip("+-0")) > 19:  # noqa: PLR2004 - an int64 has 19 digits
            return None
        value = int(digits)
        if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return None
        # Go truncates the parsed exponent to 32 bits.
        return (value + (1 << 31)) % (1 << 32) - (1 << 31), "DecimalExponent"
    return None


def _parse_fast(
    original: str, factor: int, digits: tuple[str, str], meaning: tuple[int, Format]
) -> Quantity | None:
    """Parse numbers that fit Go's int64 form, which keeps some strings unchanged."""
    number, fraction = digits
    exponent, form = meaning
    if form == "BinarySI":
        precision = 14 - len(number) - exponent * 3 // 10
        if fraction or precision < 0:
            return None
        value = int(number)
        result, scale = value << exponent, 0
        keep = value & 7 != 0
    else:
        scale = exponent - len(fraction)
        if len(number) + len(fraction) > _INT64_DIGITS or scale < _NANO:
            return None
        shifted = number + fraction
        result = int(shifted)
        keep = scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"
    return Quantity(factor * result, scale, form, original if keep else "")


def _parse_slow(
    factor: int, unscaled: int, exponent: int, meaning: tuple[int, Format]
) -> Quantity | str:
    power, form = meaning
    if form == "BinarySI":
        unscaled <<= power
    else:
        exponent += power
    if unscaled:
        # Non-zero values are rounded up to whole nanos.
        shift = exponent - _NANO
        if shift > _EXPONENT_SPAN_MAX:
            return NUMERIC_ERROR
        if shift >= 0:
            unscaled *= 10**shift
        elif -shift > _DIGITS_MAX * 2:
            unscaled = 1
        else:
            unscaled = -(-unscaled // 10**-shift)
        exponent = _NANO
    if form == "BinarySI":
        if unscaled > _INT64_MAX * 10**-exponent:
            unscaled, exponent = _INT64_MAX, 0
        elif 0 < unscaled < 10**-exponent:
            form = "DecimalSI"
    quantity = Quantity(factor * unscaled, exponent, form)
    quantity.is_big = True
    return quantity


def _is_int64(value: int) -> bool:
    return -_INT64_MAX - 1 <= value <= _INT64_MAX


def _add(left: Quantity, addend: int, right: Quantity) -> Quantity:
    form = left.format if left.unscaled else right.format
    if not addend:
        quantity = Quantity(left.unscaled, left.exponent, form)
    elif not left.unscaled:
        quantity = Quantity(addend, right.exponent, form)
    else:
        exponent = min(left.exponent, right.exponent)
        _check_span(left.exponent - right.exponent)
        total = left.unscaled * 10 ** (left.exponent - exponent)
        total += addend * 10 ** (right.exponent - exponent)
        quantity = Quantity(total, exponent, form)
    quantity.is_big = left.is_big or right.is_big or not _is_int64(quantity.unscaled)
    return quantity


def _power(exponent: int) -> int:
    return int(10**exponent)


def _check_span(span: int) -> None:
    if abs(span) > _EXPONENT_SPAN_MAX:
        raise ExpressionFailed(
            "values.quantity_range", "quantity exponents are too far apart"
        )


def _without_factors(value: int, factor: int) -> tuple[int, int]:
    times = 0
    while value and value % factor == 0:
        value //= factor
        times += 1
    return value, times


def _canonical_text(quantity: Quantity) -> str:
    if not quantity.unscaled:
        return "0"
    form: Format = quantity.format
    if form == "BinarySI":
        integer = _whole_value(quantity)
        # Small or fractional values would lose precision in binary form.
        if integer is not None and abs(integer) >= 1024:  # noqa: PLR2004 - one Ki
            number, times = _without_factors(integer, 1024)
            return _print(number) + _BINARY_SUFFIX.get(times * 10, "")
        form = "DecimalSI"
    number, times = _without_factors(quantity.unscaled, 10)
    exponent = quantity.exponent + times
    rest = exponent % 3
    number *= 10**rest
    exponent -= rest
    if form == "DecimalExponent":
        return _print(number) + (f"e{exponent}" if exponent else "")
    # KYVERNO: 0.3 - beyond n and E, Kubernetes prints the number without a suffix.
    return _print(number) + _DECIMAL_SUFFIX.get(exponent, "")


def _print(number: int) -> str:
    try:
        return str(number)
    except ValueError as error:
        raise ExpressionFailed(
            "values.quantity_range", "quantity has too many digits"
        ) from error


def _whole_value(quantity: Quantity) -> int | None:
    if quantity.exponent >= 0:
        _check_span(quantity.exponent)
        return quantity.unscaled * _power(quantity.exponent)
    if -quantity.exponent > _EXPONENT_SPAN_MAX:
        return None
    integer, rest = divmod(abs(quantity.unscaled), _power(-quantity.exponent))
    if rest:
        return None
    return integer if quantity.unscaled > 0 else -integer
