"""Compile and run one expression over ``object`` and ``x``."""

from typing import Any

from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.linking.program import compile_expression, link_expression
from kyverno_mp.expr.cel.values import Meter

NAMES = ("object", "x")
VARIABLES = {"object": types.DYN, "x": types.DYN}
ENVIRONMENT = Environment(VARIABLES, library=kyverno_library())
BASE = Environment(VARIABLES)
"""The environment of the API server's own expressions."""


def compiled(text: str) -> tuple[Any, str]:
    """Return the expression and the name of its type."""
    expression, found = compile_expression(text, ENVIRONMENT)
    return expression, str(found)


def evaluate(text: str, obj: Any = None, x: Any = None, meter: Any = None) -> Any:
    """Return the value of an expression."""
    program = link_expression(compiled(text)[0], NAMES, library=kyverno_library())
    return program.evaluate([obj, x], meter or Meter())
