"""Print values and field errors of assertions like upstream's Go code.

Room: expr.assertion. Takes: values, paths. Gives: messages. Next: link.
Source: docs/behaviour/engine 6.7; apimachinery field.Error; kyverno-json
expectValueMessage.
"""

from typing import Final

from kyverno_mp.expr.assertion.gotypes import GoMap, GoStrings, GoStruct, NilMap
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotext import GoValue, json_text, sprint
from kyverno_mp.values.jsonvalue import Json

Path = tuple["Path", str] | None
"""A field path, innermost part last: ``(((None, "a"), ".b"), "[0]")``."""

_ITEM_CHARACTERS: Final = 32
EXTRA_VALUE: Final = "v1.ExtraValue"
"""The Go type of the values in ``extra`` of a user."""


def child(path: Path, name: str) -> Path:
    """Return the path of a member; a member without a name prints as ``[]``."""
    if not name:
        return (path, "[]")
    return (path, name if path is None else f".{name}")


def path_text(path: Path) -> str:
    """Print a path; None is the path of the whole payload."""
    if path is None:
        return "<nil>"
    parts = []
    while path is not None:
        path, part = path
        parts.append(part)
    return "".join(reversed(parts))


def invalid(path: Path, value: Json, detail: str, runtime: Runtime) -> str:
    """Print a field error with the value."""
    printed = _value(value, runtime)
    return f"{path_text(path)}: Invalid value: {printed}: {detail}"


def required(path: Path) -> str:
    """Print the field error of a missing member."""
    return f"{path_text(path)}: Required value: field not found in the input object"


def internal(path: Path, reason: str) -> str:
    """Print the field error of an expression that failed."""
    return f"{path_text(path)}: Internal error: {reason}"


def expected(value: Json, runtime: Runtime) -> str:
    """Print the expected value for a scalar."""
    if isinstance(value, GoStrings) and value.go_name == EXTRA_VALUE:
        # Only this type has a String method.
        return f"Expected value: {value.go_text()}"
    if isinstance(value, str):
        return f"Expected value: {_charged(value, runtime)}"
    return f"Expected value: {_go_syntax(value, runtime, top=True)}"


def _charged(string: str, runtime: Runtime) -> str:
    """Quote a string in portions, because each character may expand to ten."""
    runtime.charge_printed(len(string))
    runtime.charge_bytes(
        0 if string.isascii() and string.isprintable() else 12 * len(string)
    )
    return quote(string)


def _value(value: Json, runtime: Runtime) -> str:
    if isinstance(value, str):
        return _charged(value, runtime)
    if isinstance(value, (list, dict, GoValue)) or value is None:
        return json_text(value, charge=runtime.charge_bytes, visit=runtime.charge)
    return sprint(value)


def _go_syntax(value: Json, runtime: Runtime, *, top: bool = False) -> str:
    """Print like ``%#v``."""
    if value is None:
        return "<nil>" if top else "interface {}(nil)"
    if isinstance(value, str):
        return _charged(value, runtime)
    if isinstance(value, GoValue):
        return _typed_syntax(value, runtime)
    if isinstance(value, list):
        runtime.charge_printed(_ITEM_CHARACTERS * len(value))
        items = ", ".join([_go_syntax(item, runtime) for item in value])
        return f"[]interface {{}}{{{items}}}"
    if isinstance(value, dict):
        runtime.charge_printed(_ITEM_CHARACTERS * len(value))
        pairs = ", ".join(
            [f"{quote(k)}:{_go_syntax(value[k], runtime)}" for k in sorted(value)]
        )
        return f"map[string]interface {{}}{{{pairs}}}"
    return sprint(value)


def _typed_syntax(value: GoValue, runtime: Runtime) -> str:
    if isinstance(value, GoStruct):
        parts = [f"{k}:{_go_syntax(v, runtime)}" for k, v in value.members.items()]
        return f"{value.go_name}{{{', '.join(parts)}}}"
    if isinstance(value, (GoStrings, GoMap, NilMap)):
        runtime.charge(len(value))
        if not value:
            return f"{value.go_name}(nil)"
        if isinstance(value, GoStrings):
            return f"{value.go_name}{{{', '.join(map(quote, value))}}}"
        pairs = [f"{quote(k)}:{_go_syntax(value[k], runtime)}" for k in sorted(value)]
        return f"{value.go_name}{{{', '.join(pairs)}}}"
    return quote(value.go_text())
