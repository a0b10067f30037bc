"""Regular expressions, on RE2.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, compile_regex.
Next: catalogue.py.
May touch: a bounded memo of compiled expressions.
Source: spec/cel.md 11; Kubernetes' regex library.
"""

from functools import lru_cache
from typing import Any, Final

import re2

from kyverno_mp.expr.cel.library import member
from kyverno_mp.expr.cel.values import CelFailed, Meter

_COMPILED_MAX: Final = 1024


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(pattern: str) -> Any:
    try:
        return re2.compile(pattern, options=_options())
    except re2.error as error:
        raw = error.args[0] if error.args else b""
        return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def compile_regex(pattern: str) -> Any:
    """Compile, remembering; raises CelFailed with Go's frame of the text."""
    found = _compiled(pattern)
    if type(found) is str:
        raise CelFailed(f"error parsing regexp: {found}")
    return found


def charge_regex(meter: Meter, text: str, pattern: str) -> None:
    """Spend what cel-go asks: a tenth of the text by a quarter of the expression."""
    meter.charge(((len(text) + 10) // 10) * ((len(pattern) + 3) // 4))


def matches(meter: Meter, text: str, pattern: str) -> bool:
    """Tell whether the expression is found anywhere in the text."""
    charge_regex(meter, text, pattern)
    return compile_regex(pattern).search(text) is not None


def _find(meter: Meter, text: str, pattern: str) -> str:
    charge_regex(meter, text, pattern)
    found = compile_regex(pattern).search(text)
    return found.group() if found is not None else ""


def _find_all(meter: Meter, text: str, pattern: str, limit: int = -1) -> list[str]:
    charge_regex(meter, text, pattern)
    compiled = compile_regex(pattern)
    found: list[str] = []
    if limit == 0:
        return found
    for one in compiled.finditer(text):
        meter.charge(1)
        found.append(one.group())
        if len(found) == limit:
            break
    return found


OVERLOADS = (
    member("matches(string, string) -> bool", matches),
    member("find(string, string) -> string", _find),
    member("findAll(string, string) -> list(string)", _find_all),
    member("findAll(string, string, int) -> list(string)", _find_all),
)
