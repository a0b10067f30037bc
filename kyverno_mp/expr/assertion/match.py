"""Compare an expected value of an assertion with the actual one.

Room: expr.assertion. Takes: two values. Gives: bool. Next: link.
Source: docs/behaviour/engine 6.7; kyverno-json pkg/engine/match, pkg/utils/reflect.
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.gotypes import GoStruct
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import TEXT_LIGHT_MAX
from kyverno_mp.values.jsonvalue import Json


def matches(expected: Json, actual: Json, runtime: Runtime) -> bool:
    """Return whether the actual value matches; maps may have additional keys.

    Raises: ExpressionFailed (``assertion.match``) for values that cannot be compared.
    """
    if isinstance(expected, list):
        if not isinstance(actual, list):
            raise _wrong("a slice", actual)
        runtime.charge(len(expected))
        return len(expected) == len(actual) and all(
            matches(e, a, runtime) for e, a in zip(expected, actual, strict=True)
        )
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            raise _wrong("a map", actual)
        runtime.charge(len(expected))
        return all(
            key in actual and matches(value, actual[key], runtime)
            for key, value in expected.items()
        )
    return _same_scalar(expected, actual, runtime)


def kind_text(value: Json) -> str:
    """Return Go's reflect.Kind of a value; ``invalid`` for null."""
    if value is None:
        return "invalid"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    kinds = {bool: "bool", float: "float64", int: "int64"}
    return kinds.get(type(value), "int" if isinstance(value, int) else "func")


_KINDS: Final = ((str, "string"), (list, "slice"), (dict, "map"), (GoStruct, "struct"))


def _same_scalar(expected: Json, actual: Json, runtime: Runtime) -> bool:
    if expected is None or actual is None:
        return expected is actual
    if isinstance(expected, GoStruct) and isinstance(actual, GoStruct):
        return expected.same(actual)
    if type(expected) is type(actual):
        if type(actual) is str and len(actual) > TEXT_LIGHT_MAX:
            runtime.charge_read(actual)
        return bool(expected == actual)
    if _is_number(expected) and _is_number(actual):
        return float(expected) == float(actual)
    raise ExpressionFailed(
        "assertion.match",
        f"types are not comparable, {kind_text(expected)} - {kind_text(actual)}",
    )


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool


def _wrong(kind: str, actual: Json) -> ExpressionFailed:
    return ExpressionFailed(
        "assertion.match",
        f"invalid actual value, must be {kind}, found {kind_text(actual)}",
    )
