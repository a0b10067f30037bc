"""Implement regex.replace, regex.extract and regex.extractAll.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: cel-go ext/regex.go; docs/behaviour/v1.19 5 (unknown in 1.18.2).
"""

from collections.abc import Iterator
from typing import Any, Final

from kyverno_mp.expr.cel.functions.regexes import (
    SEARCH_COST,
    charge_regex,
    compile_charged,
)
from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.values import (
    NO_VALUE,
    POINTER_BYTES,
    CelFailed,
    Meter,
    Optional,
    text_bytes,
)
from kyverno_mp.values.go.goquote import quote

_DIGITS: Final = "0123456789"
_MATCH_COST: Final = 300
_PART_COST: Final = 30
_CAPTURE_FACTOR: Final = 10
"""RE2 takes ten times as long if it has to remember groups."""


def _compiled(meter: Meter, string: str, pattern: str) -> Any:
    compiled = compile_charged(meter, pattern, captures=True)
    charge_regex(meter, string, compiled, factor=_CAPTURE_FACTOR)
    return compiled


def _matches(meter: Meter, string: str, compiled: Any) -> Iterator[Any]:
    """Yield all matches. GO: an empty match directly after another is skipped."""
    end = -1
    for match in compiled.finditer(string):
        if match.start() == match.end() == end:
            continue
        end = match.end()
        meter.charge(_MATCH_COST)
        yield match


def _replace(
    meter: Meter, string: str, pattern: str, replacement: str, count: int = -1
) -> str:
    if count == 0:
        return string
    compiled = _compiled(meter, string, pattern)
    meter.charge_bytes(text_bytes(len(string), string))
    parts: list[str | int] | None = None
    pieces: list[str] = []
    last = 0
    for number, match in enumerate(_matches(meter, string, compiled)):
        if number == count:
            break
        if parts is None:
            parts = _parts(meter, replacement, compiled.groups)
        pieces += [string[last : match.start()], _filled(meter, match, parts)]
        last = match.end()
    return "".join([*pieces, string[last:]])


def _parts(meter: Meter, replacement: str, groups: int) -> list[str | int]:
    r"""Return the texts and the numbers of groups (``\1``) of a replacement.

    GO: an invalid replacement is an error only if the expression matches.
    """
    meter.charge(len(replacement))
    meter.charge_bytes(text_bytes(len(replacement), replacement))
    parts: list[str | int] = []
    done = 0
    while (at := replacement.find("\\", done)) >= 0:
        meter.charge_bytes(POINTER_BYTES)
        following = replacement[at + 1 : at + 2]
        if not following:
            raise _invalid(replacement, "\\ not allowed at end")
        parts.append(replacement[done:at])
        done = at + 2
        if following == "\\":
            parts.append(following)
        elif following not in _DIGITS:
            raise _invalid(replacement, "\\ must be followed by a digit or \\")
        elif int(following) > groups:
            message = (
                f"references group {following} but regex has only {groups} group(s)"
            )
            raise CelFailed(f"replacement string {message}")
        else:
            parts.append(int(following))
    return [*parts, replacement[done:]]


def _filled(meter: Meter, match: Any, parts: list[str | int]) -> str:
    """Return the replacement of one match."""
    meter.charge(_PART_COST * len(parts))
    replacements = [
        part if isinstance(part, str) else match.group(part) or "" for part in parts
    ]
    for replacement in replacements:
        meter.charge_bytes(text_bytes(len(replacement), replacement))
    meter.charge_bytes(POINTER_BYTES)
    return "".join(replacements)


def _invalid(replacement: str, reason: str) -> CelFailed:
    return CelFailed(f"invalid replacement string: '{replacement}' {reason}")


def _single(meter: Meter, string: str, pattern: str) -> Any:
    """Return the compiled expression, which has at most one group."""
    compiled = _compiled(meter, string, pattern)
    if compiled.groups > 1:
        named = quote(pattern)
        raise CelFailed(
            f"regular expression has more than one capturing group: {named}"
        )
    return compiled


def _extract(meter: Meter, string: str, pattern: str) -> Optional:
    compiled = _single(meter, string, pattern)
    match = compiled.search(string)
    if match is None:
        return NO_VALUE
    part = match.group(compiled.groups) or ""
    if compiled.groups and not part:
        return NO_VALUE
    meter.charge_bytes(text_bytes(len(part), part) + POINTER_BYTES)
    return Optional(part)


def _extract_all(meter: Meter, string: str, pattern: str) -> list[str]:
    compiled = _single(meter, string, pattern)
    parts: list[str] = []
    for match in _matches(meter, string, compiled):
        part = match.group(compiled.groups) or ""
        if part or not compiled.groups:
            meter.charge_bytes(text_bytes(len(part), part) + POINTER_BYTES)
            parts.append(part)
    return parts


OVERLOADS: Final = (
    function(
        "regex.replace(string, string, string) -> string", _replace, cost=SEARCH_COST
    ),
    function(
        "regex.replace(string, string, string, int) -> string",
        _replace,
        cost=SEARCH_COST,
    ),
    function(
        "regex.extract(string, string) -> optional_type(string)",
        _extract,
        cost=SEARCH_COST,
    ),
    function(
        "regex.extractAll(string, string) -> list(string)",
        _extract_all,
        cost=SEARCH_COST,
    ),
)
