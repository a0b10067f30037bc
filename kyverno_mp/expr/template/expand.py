"""Substitute strings that come from data, and the results of whole-string variables.

Room: expr. Takes: strings and values known at run time, with their path. Gives: Json.
The general algorithm: scan, replace, scan again. Next: expr/template/link.
May touch: nothing outside its arguments; every round is charged to the scope's runtime.
Source: docs/behaviour/engine 3.1 steps 3-10.
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.scope import Runtime, Scope
from kyverno_mp.expr.template.lookup import ask_at, key_text
from kyverno_mp.expr.template.references import child_path
from kyverno_mp.expr.template.scan import (
    ESCAPED,
    OPENING,
    FoundVariable,
    find_variables,
    query_of,
    unescape,
)
from kyverno_mp.limits import SUBSTITUTION_DEPTH_MAX, SUBSTITUTION_ROUNDS_MAX
from kyverno_mp.values.effort import (
    CHARACTERS_PER_STEP,
    TEXT_LIGHT_MAX,
    width_of,
)
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

_SCANNED_PER_STEP: Final = 8
_FOUND_BYTES: Final = 400


def text_of(value: Json, runtime: Runtime) -> str:
    """Return a value's text within a longer string: JSON, or the string itself."""
    if type(value) is str:
        return value
    return json_text(value, charge=runtime.charge_bytes, visit=runtime.charge)


def expand(scope: Scope, string: str, path: str, depth: int = 0) -> Json:
    """Substitute one string by the general algorithm.

    Raises: ExpressionFailed with upstream's message, BudgetExceeded.
    """
    value = string
    variables = _find(scope.runtime, value)
    rounds = 0
    while variables:
        rounds += 1
        if rounds > SUBSTITUTION_ROUNDS_MAX:
            raise BudgetExceeded(
                "template.rounds", f"variables at path {path} never end"
            )
        original = value
        shallow = False
        for prefix, variable, _, _ in variables:
            scope.runtime.charge()
            query, shallow = query_of(variable)
            result = ask_at(scope, query, path)
            if original == variable:
                return settle(scope, result, path, depth + 1)
            inserted = text_of(result, scope.runtime)
            if shallow and result is not None:
                # KYVERNO: upstream panics on a shallow value that is not a string; here
                # it is inserted as JSON (docs/behaviour/engine 3.1 step 9).
                inserted = inserted.replace(OPENING, ESCAPED)
            runtime = scope.runtime
            runtime.charge(4 * (len(value) + len(inserted)) // CHARACTERS_PER_STEP)
            runtime.charge_bytes((len(value) + len(inserted)) * width_of(inserted))
            value = value.replace(prefix + variable, prefix + inserted, 1)
        variables = [] if shallow else _find(scope.runtime, value)
    return unescape(value)


def _find(runtime: Runtime, string: str) -> list[FoundVariable]:
    """Find variables, and charge for searching a long string."""
    if len(string) > TEXT_LIGHT_MAX:
        runtime.charge(len(string) // CHARACTERS_PER_STEP)
        if OPENING in string:
            runtime.charge(len(string) // _SCANNED_PER_STEP)
            runtime.charge_bytes(_FOUND_BYTES * string.count(OPENING))
    return find_variables(string)


def settle(scope: Scope, value: Json, path: str, depth: int = 0) -> Json:
    """Complete the value of a whole-string variable.

    Strings stay unchanged; lists and maps are traversed again, so that variables in
    fetched data are evaluated. If nothing changes, the same object is returned.
    """
    kind = type(value)
    if kind is list:
        return _settle_list(scope, value, path, depth)
    if kind is dict:
        return _settle_map(scope, value, path, depth)
    return value


def _inner(scope: Scope, value: Json, path: str, depth: int) -> Json:
    """Complete a string or a container inside returned data."""
    kind = type(value)
    if kind is str:
        return expand(scope, value, path, depth)
    if kind is list:
        return _settle_list(scope, value, path, depth)
    return _settle_map(scope, value, path, depth)


def _settle_list(scope: Scope, value: list[Json], path: str, depth: int) -> list[Json]:
    _charge(scope, len(value), depth)
    out = value
    for i, item in enumerate(value):
        kind = type(item)
        if kind is str:
            if len(item) > TEXT_LIGHT_MAX:
                scope.runtime.charge(len(item) // CHARACTERS_PER_STEP)
            if OPENING not in item:
                continue
        elif kind is not list and kind is not dict:
            continue
        new = _inner(scope, item, f"{path}/{i}", depth + 1)
        if new is not item:
            if out is value:
                scope.runtime.charge_items(len(value))
                out = value.copy()
            out[i] = new
    return out


def _settle_map(
    scope: Scope, value: dict[str, Json], path: str, depth: int
) -> dict[str, Json]:
    _charge(scope, len(value), depth)
    out = value
    for key, item in value.items():
        if OPENING in key:
            return _settle_keys(scope, value, path, depth)
        kind = type(item)
        if kind is str:
            if len(item) > TEXT_LIGHT_MAX:
                scope.runtime.charge(len(item) // CHARACTERS_PER_STEP)
            if OPENING not in item:
                continue
        elif kind is not list and kind is not dict:
            continue
        new = _inner(scope, item, child_path(path, key), depth + 1)
        if new is not item:
            if out is value:
                scope.runtime.charge_entries(len(value))
                out = value.copy()
            out[key] = new
    return out


def _settle_keys(
    scope: Scope, value: dict[str, Json], path: str, depth: int
) -> dict[str, Json]:
    """Complete a map in which a key contains a variable."""
    scope.runtime.charge_entries(len(value))
    out: dict[str, Json] = {}
    for key, item in value.items():
        name = key
        if OPENING in key:
            name = key_text(key, expand(scope, key, path, depth + 1))
        kind = type(item)
        if kind is str or kind is list or kind is dict:
            out[name] = _inner(scope, item, child_path(path, key), depth + 1)
        else:
            out[name] = item
    return out


def _charge(scope: Scope, count: int, depth: int) -> None:
    if depth > SUBSTITUTION_DEPTH_MAX:
        raise BudgetExceeded("template.depth", "substituted data is nested too deeply")
    runtime = scope.runtime
    runtime.steps_left -= count
    if runtime.steps_left < 0:
        runtime.charge()
