"""Implement regular expressions on RE2.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, compile_regex.
Next: expr/cel/catalogue.py.
Source: docs/behaviour/cel 11; Kubernetes' regex library.
"""

from typing import Any, Final

from kyverno_mp.expr.cel.library import member
from kyverno_mp.expr.cel.values import POINTER_BYTES, CelFailed, Meter, text_bytes
from kyverno_mp.limits import REGEX_CHARACTERS_MAX
from kyverno_mp.values.go.regex import Regex, work_ahead
from kyverno_mp.values.go.regex import compile_regex as remembered

_MET_MAX: Final = 64
SEARCH_COST: Final = 220
"""The cost of one search in a short string; it is high because RE2's binding is written
in Python."""
COMPILE_COST: Final = 40
"""The cost of compiling one character of an expression."""
_TOO_LARGE: Final = "error parsing regexp: expression too large"
_MATCH_COST: Final = 150
_INSTRUCTION_COST: Final = 10
"""The cost per instruction of the compiled expression."""


def compile_regex(pattern: str, *, captures: bool = False) -> Any:
    """Compile a pattern, with a cache. Raises: CelFailed with Go's text."""
    regex = _remembered(pattern, captures=captures)
    if regex.compiled is None:
        raise CelFailed(regex.error_text(pattern))
    return regex.compiled


def compile_work(pattern: str) -> int:
    """Return the compile time of a pattern, even an invalid one, in microseconds."""
    return _remembered(pattern).instructions // 2


def _remembered(pattern: str, *, captures: bool = False) -> Regex:
    if len(pattern) > REGEX_CHARACTERS_MAX:
        raise CelFailed(_TOO_LARGE)
    # No function here needs groups, and with groups RE2 takes ten times as long.
    return remembered(pattern, captures=captures)


def charge_regex(meter: Meter, string: str, compiled: Any, factor: int = 1) -> None:
    """Charge a tenth of the text's length times the size of the program.

    ``factor``: how much slower the search is than one without groups.

    cel-go charges a quarter of the expression's length, but ``x{1000}`` is short; at
    worst RE2 visits every state for every character.
    """
    size = len(string) if string.isascii() else 2 * len(string)
    meter.charge(factor * ((size + 10) // 10) * (compiled.programsize + 2))
    meter.hold(size)


def compile_charged(meter: Meter, pattern: str, *, captures: bool = False) -> Any:
    """Compile an expression and charge for it on its first use in an evaluation.

    A cached expression is charged, too, so that a policy costs the same in every
    worker.
    """
    met = meter.regexes
    if met is None:
        met = meter.regexes = set()
    # An expression with groups is another program: its text gets a mark.
    key = f"(){pattern}" if captures else pattern
    if key not in met:
        if len(met) >= _MET_MAX:
            met.clear()
        met.add(key)
        if len(pattern) > REGEX_CHARACTERS_MAX:
            raise CelFailed(_TOO_LARGE)
        ahead = work_ahead(pattern)
        meter.charge(COMPILE_COST * (len(pattern) + 10) + _INSTRUCTION_COST * ahead)
        work = _remembered(pattern, captures=captures).instructions - ahead
        meter.charge(_INSTRUCTION_COST * max(work, 0))
    return compile_regex(pattern, captures=captures)


def matches(meter: Meter, string: str, pattern: str) -> bool:
    """Return whether the expression matches anywhere in the text."""
    compiled = compile_charged(meter, pattern)
    charge_regex(meter, string, compiled)
    return compiled.search(string) is not None


def _find(meter: Meter, string: str, pattern: str) -> str:
    compiled = compile_charged(meter, pattern)
    charge_regex(meter, string, compiled)
    match = compiled.search(string)
    if match is None:
        return ""
    meter.charge_bytes(text_bytes(match.end() - match.start(), string))
    return str(match.group())


def _find_all(meter: Meter, string: str, pattern: str, limit: int = -1) -> list[str]:
    compiled = compile_charged(meter, pattern)
    charge_regex(meter, string, compiled)
    parts: list[str] = []
    if limit == 0:
        return parts
    end = -1
    for match in compiled.finditer(string):
        if match.start() == match.end() == end:
            # Go skips an empty match directly after another match.
            continue
        end = match.end()
        meter.charge(_MATCH_COST)
        meter.charge_bytes(
            text_bytes(match.end() - match.start(), string) + POINTER_BYTES
        )
        parts.append(match.group())
        if len(parts) == limit:
            break
    return parts


OVERLOADS = (
    member("matches(string, string) -> bool", matches, cost=SEARCH_COST),
    member("find(string, string) -> string", _find, cost=SEARCH_COST),
    member("findAll(string, string) -> list(string)", _find_all, cost=SEARCH_COST),
    member("findAll(string, string, int) -> list(string)", _find_all, cost=SEARCH_COST),
)
