"""Implement regular expressions on RE2.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, compile_regex.
Next: catalogue.py.
May touch: a bounded cache of compiled expressions.
Source: spec/cel.md 11; Kubernetes' regex library.
"""

from typing import Any, Final

import re2

from kyverno_mp.expr.cel.library import member
from kyverno_mp.expr.cel.values import POINTER_BYTES, CelFailed, Meter, text_bytes
from kyverno_mp.limits import REGEX_CHARACTERS_MAX

_COMPILED_MAX: Final = 1024
SEARCH_COST: Final = 220
"""One search in a short text: RE2's binding is Python."""
COMPILE_COST: Final = 40
"""Compiling one character of an expression."""
_MATCH_COST: Final = 150


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    # Groups are not needed here, and with them RE2 takes ten times as long.
    options.never_capture = True
    return options


_known: dict[str, Any] = {}


def compile_regex(pattern: str) -> Any:
    """Compile with a cache; raises CelFailed with Go's prefix of the text."""
    if len(pattern) > REGEX_CHARACTERS_MAX:
        raise CelFailed("error parsing regexp: expression too large")
    found = _known.get(pattern)
    if found is None:
        try:
            found = re2.compile(pattern, options=_options())
        except re2.error as error:
            raw = error.args[0] if error.args else b""
            found = raw.decode("utf-8", "replace") if type(raw) is bytes else str(raw)
        if len(_known) >= _COMPILED_MAX:
            _known.clear()
        _known[pattern] = found
    if type(found) is str:
        raise CelFailed(f"error parsing regexp: {found}")
    return found


def charge_regex(meter: Meter, text: str, compiled: Any) -> None:
    """Charge a tenth of the text length times the size of the program.

    cel-go charges a quarter of the expression's length, but ``x{1000}`` is short; at
    worst RE2 visits every state for every character.
    """
    size = len(text) if text.isascii() else 2 * len(text)
    meter.charge(((size + 10) // 10) * (compiled.programsize + 2))
    meter.hold(size)


def _compile(meter: Meter, pattern: str) -> Any:
    """Compile an expression that may not be cached."""
    if pattern not in _known:
        meter.charge(COMPILE_COST * (len(pattern) + 10))
    return compile_regex(pattern)


def matches(meter: Meter, text: str, pattern: str) -> bool:
    """Return whether the expression matches anywhere in the text."""
    compiled = _compile(meter, pattern)
    charge_regex(meter, text, compiled)
    return compiled.search(text) is not None


def _find(meter: Meter, text: str, pattern: str) -> str:
    compiled = _compile(meter, pattern)
    charge_regex(meter, text, compiled)
    found = compiled.search(text)
    if found is None:
        return ""
    meter.charge_bytes(text_bytes(found.end() - found.start(), text))
    return str(found.group())


def _find_all(meter: Meter, text: str, pattern: str, limit: int = -1) -> list[str]:
    compiled = _compile(meter, pattern)
    charge_regex(meter, text, compiled)
    found: list[str] = []
    if limit == 0:
        return found
    for one in compiled.finditer(text):
        meter.charge(_MATCH_COST)
        meter.charge_bytes(text_bytes(one.end() - one.start(), text) + POINTER_BYTES)
        found.append(one.group())
        if len(found) == limit:
            break
    return found


OVERLOADS = (
    member("matches(string, string) -> bool", matches, cost=SEARCH_COST),
    member("find(string, string) -> string", _find, cost=SEARCH_COST),
    member("findAll(string, string) -> list(string)", _find_all, cost=SEARCH_COST),
    member("findAll(string, string, int) -> list(string)", _find_all, cost=SEARCH_COST),
)
