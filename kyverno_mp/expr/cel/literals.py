"""Judge constants given to duration, timestamp and matches when a policy is compiled.

Room: expr. Takes: a function's name and its constant argument. Gives: what is wrong.
Next: check.py. May touch: nothing outside its arguments.
Source: cel-go's AST validators; spec/cel.md 11, 12c.
"""

from kyverno_mp.expr.cel.functions.regexes import compile_regex
from kyverno_mp.expr.cel.functions.times import parse_timestamp
from kyverno_mp.expr.cel.nodes import Const
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.values.duration import parse_duration


def literal_problem(function: str, const: Const) -> str:
    """Return the validator's text, "" when the constant is good."""
    if const.kind != "string":
        return ""
    try:
        if function == "duration" and parse_duration(const.value) is None:
            return "invalid duration argument"
        if function == "timestamp":
            parse_timestamp(const.value)
        elif function == "matches":
            compile_regex(const.value)
    except CelFailed:
        return f"invalid {function} argument"
    return ""
