"""Read plain YAML scalars as integers like Go's yaml.v2.

Room: values. Takes: texts. Gives: yaml_int. Next: policy/reading/yaml_scalar.py,
expr/jmespath/yaml_text.py.
Source: GO: goyaml.v2 resolve.go; strconv ParseInt, ParseUint with base 0.
"""

import re
from typing import Final

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1

# SAFETY: constant patterns that match in linear time, without backtracking.
_INT: Final = re.compile(
    r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]([0-7]+)|0([0-7]+)|(0|[1-9][0-9]*))"
)
_BASES: Final = (16, 2, 8, 8, 10)
_SIGN_INSIDE: Final = re.compile("0b([-+][01]+)")
_CHARACTERS_MAX: Final = 400
"""Longer than any 64-bit number in any base, to limit the input of int()."""


def yaml_int(scalar: str) -> int | None:
    """Return an integer of 64 bits; None for other texts, which may still be floats."""
    plain = scalar.replace("_", "")
    if len(plain) > _CHARACTERS_MAX:
        return None
    match = _INT.fullmatch(plain)
    if match is None:
        # GO: what follows 0b is parsed on its own, with its sign.
        inside = _SIGN_INSIDE.fullmatch(plain)
        return None if inside is None else _within(int(inside[1], 2), INT64_MAX)
    for digits, base in zip(match.groups()[1:], _BASES, strict=True):
        if digits is not None:
            value = int(digits, base)
            if match[1] == "-":
                value = -value
            # GO: unsigned integers have no sign, not even a plus.
            return _within(value, INT64_MAX if match[1] else _UINT64_MAX)
    raise AssertionError("a branch of the pattern has matched")


def _within(value: int, most: int) -> int | None:
    return value if INT64_MIN <= value <= most else None
