"""Evaluate an expression, and write its outcome in one line of text.

The text of a value is unambiguous: its type, doubles by their bits, strings with
escapes. ``tests/fuzz/cel_differential`` writes the real program's results in this form.
"""

import struct
from collections.abc import Callable
from typing import Any

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.fold import constant_failure
from kyverno_mp.expr.cel.functions.kyverno import identities
from kyverno_mp.expr.cel.functions.kyverno.documents import JSON, YAML
from kyverno_mp.expr.cel.functions.network import Cidr, Ip
from kyverno_mp.expr.cel.linking.program import compile_expression, link_expression
from kyverno_mp.expr.cel.types import opaque_type
from kyverno_mp.expr.cel.values import (
    Duration,
    Meter,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    type_name,
)
from kyverno_mp.values.kubernetes.quantity import Quantity

NAMES = {
    "object": types.DYN,
    "x": types.DYN,
    "json": opaque_type("json.Json"),
    "yaml": opaque_type("yaml.Yaml"),
}
_ENVIRONMENT = Environment(NAMES, identities.RECORDS, library=kyverno_library())


def outcome(expression: str, obj: Any, x: Any) -> tuple[str, str]:
    """Return the kind of outcome and its text: compile, program, error or value."""
    try:
        compiled, _ = compile_expression(expression, _ENVIRONMENT)
    except ExpressionInvalid as error:
        return "compile", error.message
    assert compiled.node is not None
    failure = constant_failure(compiled.node)
    if failure:
        return "program", failure
    program = link_expression(compiled, tuple(NAMES), library=kyverno_library())
    try:
        return "value", shown(program.evaluate([obj, x, JSON, YAML], Meter()))
    except (ExpressionFailed, BudgetExceeded) as error:
        return "error", error.message


def shown(value: Any) -> str:
    """Return the text of a value."""
    show = _SHOWN.get(type(value))
    return f"O:{type_name(value)}" if show is None else show(value)


def _text(value: str) -> str:
    plain = [
        char if " " <= char <= "~" and char != "\\" else f"\\{ord(char):x};"
        for char in value
    ]
    return f"s:{''.join(plain)}"


def _double(value: float) -> str:
    if value != value:  # noqa: PLR0124 - NaN
        return "d:nan"
    return f"d:{struct.unpack('>Q', struct.pack('>d', value))[0]:016x}"


def _map(value: dict[Any, Any]) -> str:
    entries = (f"{shown(key)}={shown(entry)}" for key, entry in value.items())
    return f"{{{','.join(sorted(entries))}}}"


_SHOWN: dict[type, Callable[[Any], str]] = {
    type(None): lambda _v: "null",
    bool: lambda v: str(v).lower(),
    int: lambda v: f"i:{v}",
    Uint: lambda v: f"u:{int(v)}",
    float: _double,
    str: _text,
    bytes: lambda v: f"b:{v.hex()}",
    Timestamp: lambda v: f"t:{v.ns // 10**9}.{v.ns % 10**9:09d}",
    Duration: lambda v: f"D:{v.ns}",
    Optional: lambda v: f"opt({shown(v.value)})" if v.present else "opt()",
    TypeValue: lambda v: f"type:{v.name}",
    dict: _map,
    list: lambda v: f"[{','.join(map(shown, v))}]",
    Quantity: lambda v: f"kubernetes.Quantity:{v.text()}",
    Ip: lambda v: f"net.IP:{v.address}",
    Cidr: lambda v: f"net.CIDR:{v.address}/{v.bits}",
}
