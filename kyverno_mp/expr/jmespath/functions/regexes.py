"""Implement regular expressions on RE2 with Go's semantics.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.2 (regex_*); Go's package regexp.
"""

import re
from typing import Any, Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.functions.entry import (
    BOOL,
    STRING,
    TEXTUAL,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.jmespath.functions.objects import text_of
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import REGEX_CHARACTERS_MAX
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, width_of
from kyverno_mp.values.go.regex import compile_regex as remembered
from kyverno_mp.values.go.regex import work_ahead
from kyverno_mp.values.jsonvalue import Json

_TEMPLATE: Final = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")


_PRODUCT_PER_STEP: Final = 128
"""RE2's slowest engine takes time proportional to program size times text length; this
much of the product takes about one step."""
_COMPILE_STEPS: Final = 48
"""PERF: compiling the shortest pattern takes 24 us. A cached pattern takes less, but
the budget of a request must not depend on earlier requests."""
_COMPILED_PER_STEP: Final = 8
_MATCH_STEPS: Final = 8
_PIECE_BYTES: Final = 160
_GROUPS_MAX: Final = 100
"""The maximum number of groups in a replacement's expression: each group costs memory
in every state."""


def compile_regex(runtime: Runtime, pattern: str, *, captures: bool = True) -> Any:
    """Compile a pattern, and charge the caller; see values/go/regex.py.

    Shape: a compiled pattern, or ``error parsing regexp: ...`` as str.
    """
    if len(pattern) > REGEX_CHARACTERS_MAX:
        raise BudgetExceeded("expr.regex", "regular expression is too long")
    runtime.charge(_COMPILE_STEPS + len(pattern) // _COMPILED_PER_STEP)
    if not runtime.meets_regex(pattern):
        regex = remembered(pattern, captures=captures)
    else:
        ahead = work_ahead(pattern)
        runtime.charge(ahead)
        regex = remembered(pattern, captures=captures)
        runtime.charge(max(regex.instructions - ahead, 0))
    return regex.compiled or regex.error_text(pattern)


def _regex_match(runtime: Runtime, pattern: str, value: Json) -> Json:
    compiled = compile_regex(runtime, pattern, captures=False)
    string = text_of(runtime, value)
    assert string is not None
    runtime.charge_made(2 * len(string), string)
    if type(compiled) is str:
        raise fail(compiled)
    _charge_search(runtime, compiled, string)
    return compiled.search(string) is not None


def _charge_search(runtime: Runtime, compiled: Any, string: str) -> None:
    """Charge RE2's worst case; see _PRODUCT_PER_STEP."""
    runtime.charge(compiled.programsize * len(string) // _PRODUCT_PER_STEP)


def _regex_replace_all(
    runtime: Runtime, pattern: str, source: Json, replacement: Json
) -> Json:
    compiled = _compiled(runtime, pattern, "regex_replace_all")
    string, template = text_of(runtime, source), text_of(runtime, replacement)
    assert string is not None
    assert template is not None
    if "$" not in template:
        return _replace(runtime, compiled, string, lambda _match: template)
    runtime.charge(len(template))
    runtime.charge_bytes(len(template) * _PIECE_BYTES)
    pieces = _template_pieces(template)
    names = compiled.groupindex

    def expand(match: Any) -> str:
        runtime.charge_items(2 * len(pieces))
        parts = [
            piece if not group else _group(match, group, names)
            for piece, group in pieces
        ]
        length = sum(map(len, parts))
        runtime.charge(length // CHARACTERS_PER_STEP)
        runtime.charge_bytes(length)
        return "".join(parts)

    return _replace(runtime, compiled, string, expand)


def _regex_replace_all_literal(
    runtime: Runtime, pattern: str, source: Json, replacement: Json
) -> Json:
    compiled = _compiled(runtime, pattern, "regex_replace_all_literal")
    string, literal = text_of(runtime, source), text_of(runtime, replacement)
    assert string is not None
    assert literal is not None
    return _replace(runtime, compiled, string, lambda _match: literal)


def _compiled(runtime: Runtime, pattern: str, function: str) -> Any:
    compiled = compile_regex(runtime, pattern)
    if type(compiled) is str:
        raise function_error(function, compiled)
    if compiled.groups > _GROUPS_MAX:
        raise BudgetExceeded("expr.regex_groups", "expression has too many groups")
    return compiled


def _template_pieces(template: str) -> list[tuple[str, str]]:
    """Split a template into literal strings and group names.

    ``$1x`` names the group ``1x``; a dollar sign without a name after it is kept.
    """
    pieces: list[tuple[str, str]] = []
    start = 0
    for match in _TEMPLATE.finditer(template):
        pieces.append((template[start : match.start()], ""))
        name = match.group(1) or match.group(2)
        pieces.append(("", name) if name else ("$", ""))
        start = match.end()
    pieces.append((template[start:], ""))
    return pieces


def _group(match: Any, name: str, names: dict[str, int]) -> str:
    if name.isdigit():
        # Go accepts 0, but not 01, as the number of a group.
        number = int(name) if name == "0" or name[0] != "0" else -1
    else:
        number = names.get(name, -1)
    if not 0 <= number <= match.re.groups:
        return ""
    return match.group(number) or ""


def _replace(runtime: Runtime, compiled: Any, string: str, expand: Any) -> str:
    """Replace every match; as in Go, skip an empty match right after another match."""
    runtime.charge_made(2 * len(string), string)
    _charge_search(runtime, compiled, string)
    steps_per_match = _MATCH_STEPS + compiled.groups
    width = width_of(string)
    pieces: list[str] = []
    start = 0
    last_end = -1
    for match in compiled.finditer(string):
        begin, end = match.span()
        if begin == end == last_end:
            continue
        runtime.charge(steps_per_match + (begin - start) // CHARACTERS_PER_STEP)
        runtime.charge_bytes((begin - start) * width + _PIECE_BYTES)
        piece = string[start:begin]
        new = expand(match)
        runtime.charge_bytes(len(new) * width_of(new))
        pieces.append(piece)
        pieces.append(new)
        start = last_end = end
    pieces.append(string[start:])
    return "".join(pieces)


FUNCTIONS: Final = (
    FunctionEntry(
        "regex_replace_all",
        (STRING, TEXTUAL, TEXTUAL),
        _regex_replace_all,
        STRING,
        "converts all parameters to string",
    ),
    FunctionEntry(
        "regex_replace_all_literal",
        (STRING, TEXTUAL, TEXTUAL),
        _regex_replace_all_literal,
        STRING,
        "converts all parameters to string",
    ),
    FunctionEntry(
        "regex_match",
        (STRING, TEXTUAL),
        _regex_match,
        BOOL,
        "first string is the regular exression which is compared with second input "
        "which can be a number or string",
    ),
)
