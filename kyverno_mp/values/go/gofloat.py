"""Parse floats like Go's strconv.ParseFloat.

Room: values. Takes: texts. Gives: parse_float, without_underscores. Next:
expr/conditions/numbers.py, expr/pattern/leaf.py,
expr/jmespath/functions/numbers.py.
Source: GO: strconv readFloat, special, underscoreOK.
"""

import math
import re
from typing import Final

# An underscore must separate digits; the prefix 0x counts as a digit.
_WRONG: Final = re.compile(r"(?<![0-9])_|_(?![0-9])")
_WRONG_HEX: Final = re.compile(r"(?<![0-9a-fA-FxX])_|_(?![0-9a-fA-F])")
_HEX_START: Final = re.compile(r"[+-]?0[xX]")
# PERF: possessive quantifiers keep these patterns linear on long strings that do not
# match.
_DECIMAL: Final = re.compile(
    r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?\Z"
)
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++\Z"
)
_INFINITE: Final = re.compile(r"([+-]?)inf(?:inity)?\Z", re.IGNORECASE | re.ASCII)


def parse_float(number: str) -> float | None:
    """Parse like strconv.ParseFloat(text, 64); None if it returns an error."""
    plain = without_underscores(number)
    if plain is None:
        return None
    if _DECIMAL.match(plain):
        value = float(plain)
        return None if math.isinf(value) else value
    if _HEX.match(plain):
        try:
            return float.fromhex(plain)
        except OverflowError:
            return None
    if match := _INFINITE.match(plain):
        return -math.inf if match[1] == "-" else math.inf
    # GO: nan has no sign.
    return math.nan if plain.lower() == "nan" else None


def without_underscores(number: str) -> str | None:
    """Return a number's text without its underscores; None if one is misplaced."""
    if "_" not in number:
        return number
    wrong = _WRONG_HEX if _HEX_START.match(number) else _WRONG
    return None if wrong.search(number) else number.replace("_", "")
