"""Implement semantic versions.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: k8s apiserver/pkg/cel/library/semverlib.go, version 1; docs/behaviour/cel 11.
"""

from typing import Final, NamedTuple

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter
from kyverno_mp.values.semver import Version, parse_version, version_error

_CHARACTER_COST: Final = 20
"""Every two characters can form a separate part, which takes 1.5 microseconds."""
_CHARACTER_BYTES: Final = 150
_PART_COST: Final = 4
_COST: Final = 80
_QUOTED_MAX: Final = 256


class Semver(NamedTuple):
    """A version; build metadata does not affect the order."""

    version: Version

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "kubernetes.Semver"


def _normalised(version: str) -> str:
    """Strip a leading ``v`` and leading zeros, and pad missing parts."""
    parts = version.removeprefix("v").split(".", 2)
    for position, part in enumerate(parts):
        if len(part.encode()) > 1:
            bare = part.lstrip("0")
            parts[position] = bare if bare[:1].isdecimal() else f"0{bare}"
    if len(parts) < 3:  # noqa: PLR2004 - major, minor and patch
        if "+" in parts[-1] or "-" in parts[-1]:
            raise CelFailed("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _semver(meter: Meter, version: str, normalize: bool = False) -> Semver:  # noqa: FBT001, FBT002 - CEL's positional flag
    meter.charge(_CHARACTER_COST * len(version))
    meter.hold(_CHARACTER_BYTES * len(version))
    version = _normalised(version) if normalize else version
    parsed = parse_version(version)
    if parsed is None:
        # The error quotes the text, so only the beginning of a long text is used.
        raise CelFailed(
            version_error(version[:_QUOTED_MAX]) or "Invalid Semantic Version"
        )
    return Semver(parsed)


def _is_semver(meter: Meter, version: str, normalize: bool = False) -> bool:  # noqa: FBT001, FBT002 - as above
    try:
        _semver(meter, version, normalize)
    except CelFailed:
        return False
    return True


def _compare(meter: Meter, semver: Semver, right: Semver) -> int:
    meter.charge(_PART_COST * min(len(semver.version[4]), len(right.version[4])))
    return (semver.version > right.version) - (semver.version < right.version)


OVERLOADS = (
    function("semver(string) -> Semver", _semver, cost=_COST),
    function("semver(string, bool) -> Semver", _semver, cost=_COST),
    function("isSemver(string) -> bool", _is_semver, cost=_COST),
    function("isSemver(string, bool) -> bool", _is_semver, cost=_COST),
    member("major(Semver) -> int", lambda _m, v: v.version[0]),
    member("minor(Semver) -> int", lambda _m, v: v.version[1]),
    member("patch(Semver) -> int", lambda _m, v: v.version[2]),
    member(
        "isLessThan(Semver, Semver) -> bool",
        lambda m, a, b: _compare(m, a, b) < 0,
        cost=12,
    ),
    member(
        "isGreaterThan(Semver, Semver) -> bool",
        lambda m, a, b: _compare(m, a, b) > 0,
        cost=12,
    ),
    member("compareTo(Semver, Semver) -> int", _compare, cost=12),
)
