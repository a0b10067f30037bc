"""Compare semantic versions with ranges like blang/semver.

Room: values. Takes: version and range strings. Gives: Version tuples, errors, range
predicates. Next: expr/jmespath (semver_compare).
Source: docs/behaviour/engine 9.2 (semver_compare); blang/semver v4.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.goquote import quote

Release: TypeAlias = tuple[tuple[int, int, str], ...]
Version: TypeAlias = tuple[int, int, int, int, Release]
"""Major, minor, patch, 1 for a final version or 0 for a prerelease, and the prerelease
parts; versions are compared as tuples. Build metadata does not affect the order and is
dropped."""
Range: TypeAlias = Callable[[Version], bool]

ZERO: Final[Version] = (0, 0, 0, 1, ())

_NUMBERS: Final = frozenset("0123456789")
_ALPHANUMERIC: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-0123456789"
)
_UINT64_END: Final = 1 << 64
_UINT64_DIGITS: Final = 20
_INT64_MAX: Final = (1 << 63) - 1
_OPERATORS: Final[dict[str, Callable[[Version, Version], bool]]] = {
    "==": lambda left, right: left == right,
    "": lambda left, right: left == right,
    "=": lambda left, right: left == right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    "!": lambda left, right: left != right,
    "!=": lambda left, right: left != right,
}


def parse_version(version: str) -> Version | None:
    """Parse a strict version (``1.2.3-rc.1+build``); None if it is invalid."""
    parsed = _parse(version)
    return None if type(parsed) is str else parsed  # type: ignore[return-value]


def version_error(version: str) -> str:
    """Return the library's error for a string that ``parse_version`` rejects."""
    parsed = _parse(version)
    return parsed if type(parsed) is str else ""


def _parse(version: str) -> Version | str:
    if not version:
        return "Version string empty"
    parts = version.split(".", 2)
    if len(parts) != 3:  # noqa: PLR2004 - major, minor and patch
        return "No Major.Minor.Patch elements found"
    patch, _, build = parts[2].partition("+")
    has_build = "+" in parts[2]
    patch, dash, release = patch.partition("-")
    numbers: list[int] = []
    for name, digits in (("Major", parts[0]), ("Minor", parts[1]), ("Patch", patch)):
        number = _parse_number(name, digits)
        if type(number) is str:
            return number
        assert type(number) is int
        numbers.append(number)
    parsed: list[tuple[int, int, str]] = []
    for part in release.split(".") if dash else ():
        piece = _parse_release(part)
        if type(piece) is str:
            return piece
        assert type(piece) is tuple
        parsed.append(piece)
    for part in build.split(".") if has_build else ():
        if not part:
            return "Build meta data is empty"
        if not _ALPHANUMERIC.issuperset(part):
            return f"Invalid character(s) found in build meta data {quote(part)}"
    final = 0 if parsed else 1
    return numbers[0], numbers[1], numbers[2], final, tuple(parsed)


def _parse_number(name: str, digits: str) -> int | str:
    if not _NUMBERS.issuperset(digits):
        return f"Invalid character(s) found in {name.lower()} number {quote(digits)}"
    if len(digits) > 1 and digits[0] == "0":
        return f"{name} number must not contain leading zeroes {quote(digits)}"
    return _parse_uint(digits)


def _parse_uint(digits: str) -> int | str:
    if not digits:
        return f"strconv.ParseUint: parsing {quote(digits)}: invalid syntax"
    if len(digits) > _UINT64_DIGITS or int(digits) >= _UINT64_END:
        return f"strconv.ParseUint: parsing {quote(digits)}: value out of range"
    return int(digits)


def _parse_release(part: str) -> tuple[int, int, str] | str:
    if not part:
        return "Prerelease is empty"
    if _NUMBERS.issuperset(part):
        if len(part) > 1 and part[0] == "0":
            return (
                "Numeric PreRelease version must not contain leading zeroes "
                + quote(part)
            )
        number = _parse_uint(part)
        return number if type(number) is str else (0, int(number), "")
    if _ALPHANUMERIC.issuperset(part):
        return (1, 0, part)
    return f"Invalid character(s) found in prerelease {quote(part)}"


def parse_range(constraint: str) -> Range:
    """Compile a range such as ``>=1.2.0 <2.0.0 || 3.x`` to a predicate.

    Raises: ExpressionFailed (values.semver_range) with the library's text.
    """
    alternatives = [
        [_comparator(part) for part in group]
        for group in _expand_wildcards(_split_alternatives(_split_parts(constraint)))
    ]
    if not any(alternatives):
        # KYVERNO: here the library returns a nil function, and the call panics.
        raise _range_error("Version range is empty")

    def contains(version: Version) -> bool:
        return any(
            all(compare(version, bound) for compare, bound in group)
            for group in alternatives
        )

    return contains


def _range_error(message: str) -> ExpressionFailed:
    return ExpressionFailed("values.semver_range", message)


def _split_parts(constraint: str) -> list[str]:
    """Split at spaces that do not follow an operator; one-letter parts are lost.

    KYVERNO: 9.2 - the library drops parts of a single byte, as in ``>1.0.0 5``.
    """
    data = constraint.encode("utf-8", "replace")
    parts: list[bytes] = []
    start = 0
    previous = 0
    for index, byte in enumerate(data):
        if byte == 0x20 and previous not in b"<=>":  # noqa: PLR2004 - a blank
            if start < index - 1:
                parts.append(data[start:index])
            start = index + 1
        elif byte != 0x20:  # noqa: PLR2004 - a blank
            previous = byte
    if start < len(data) - 1:
        parts.append(data[start:])
    return [part.replace(b" ", b"").decode("utf-8", "replace") for part in parts]


def _split_alternatives(parts: list[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    start = 0
    for index, part in enumerate(parts):
        if part == "||":
            if index == 0:
                raise _range_error("First element in range is '||'")
            groups.append(parts[start:index])
            start = index + 1
    if start == len(parts):
        raise _range_error("Last element in range is '||'")
    groups.append(parts[start:])
    return groups


def _expand_wildcards(groups: list[list[str]]) -> list[list[str]]:
    return [
        [
            expanded
            for part in group
            for expanded in (_expand_wildcard(part) if "x" in part else (part,))
        ]
        for group in groups
    ]


def _expand_wildcard(part: str) -> list[str]:
    operator, version = _split_comparator(part)
    places = version.split(".")
    wildcard = len(places) if places[-1] == "x" else 0
    if wildcard > 3:  # noqa: PLR2004 - no version has more places
        wildcard = 0
    flat = version.replace(".x.x", ".x", 1).replace(".x", ".0", 1)
    if flat.count(".") == 1:
        flat += ".0"
    expanded: list[str] = []
    result, increment = {
        ">": (">=", True),
        ">=": (">=", False),
        "<": ("<", False),
        "<=": ("<", True),
        "": ("<", True),
        "=": ("<", True),
        "==": ("<", True),
        "!=": (">=", True),
        "!": (">=", True),
    }.get(operator, ("", False))
    if operator in ("", "=", "=="):
        expanded.append(">=" + flat)
    elif operator in ("!=", "!"):
        expanded.append("<" + flat)
    bound = flat
    if increment:
        bound = _increment(flat, 1 if wildcard == 3 else 0) if wildcard > 1 else ""  # noqa: PLR2004 - third and second place
    expanded.append(result + bound)
    return expanded


def _increment(version: str, position: int) -> str:
    places = version.split(".")
    digits = places[position]
    if not digits.lstrip("+-").isdecimal() or len(digits) > _UINT64_DIGITS:
        return ""
    places[position] = str(int(digits) + 1)
    return ".".join(places)


def _split_comparator(part: str) -> tuple[str, str]:
    for index, char in enumerate(part):
        if char.isdecimal():
            return part[:index].strip(), part[index:]
    raise _range_error(f"Could not get version from string: {quote(part)}")


def _comparator(part: str) -> tuple[Callable[[Version, Version], bool], Version]:
    operator, version = _split_comparator(part)
    compare = _OPERATORS.get(operator)
    comparator = quote(operator + version)
    prefix = f"Could not parse Range {quote(part)}: "
    if compare is None:
        raise _range_error(
            f"{prefix}Could not parse comparator {quote(operator)} in {comparator}"
        )
    parsed = _parse(version)
    if type(parsed) is str:
        raise _range_error(
            f"{prefix}Could not parse version {quote(version)} in"
            f" {comparator}: {parsed}"
        )
    return compare, parsed  # type: ignore[return-value]
