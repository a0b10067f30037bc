"""Rewrite the variables of a message as a messageExpression.

Room: cli. Takes: a message. Gives: a message, or an expression. Next: rules.py.
Source: docs/behaviour/engine 6.2; docs/behaviour/cel 6.
"""

from typing import Final

from kyverno_mp.cli.fix.rewrite.jmespath import value_of
from kyverno_mp.cli.fix.rewrite.query_values import Code, Default, Names
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.template.scan import find_variables, query_of

_TEXTS: Final = frozenset({"string", "numeric", "boolean"})


def message_of(message: str, names: Names) -> tuple[str, str]:
    """Return the message and the messageExpression; "" for the unused one.

    A variable that has no equivalent here stays in the message as it is written: it
    decides nothing.
    """
    if "{{" not in message:
        return message, ""
    try:
        return "", _expression(message, names)
    except (NotRewritten, ExpressionInvalid):
        return message, ""


def _expression(message: str, names: Names) -> str:
    parts: list[str] = []
    end = 0
    for variable in find_variables(message):
        if message[end : variable.start]:
            parts.append(literal(message[end : variable.start]))
        end = variable.end
        query, _ = query_of(variable.variable)
        parts.append(_text(query, names))
    if message[end:]:
        parts.append(literal(message[end:]))
    if "{{" in "".join(part for part in parts if part.startswith("'")):
        raise NotRewritten("variables in the message")
    return " + ".join(parts)


def _text(query: str, names: Names) -> str:
    value = value_of(query, names)
    if isinstance(value, Default) and isinstance(value.value, Typed):
        constant = value.constant
        if value.value.kind == "string" and type(constant) is str:
            return value.value.default(literal(constant))
    if isinstance(value, Code | Typed) and value.kind in _TEXTS:
        plain = value.plain
        if isinstance(value, Typed) and value.kind == "string":
            plain = value.default("''")
        return plain if value.kind == "string" else f"string({plain})"
    raise NotRewritten("variables in the message")
