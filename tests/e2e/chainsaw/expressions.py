"""Evaluate the expressions of chainsaw tests, and compare objects with checks.

Takes: values with ``(expressions)``, bindings. Gives: plain values; the differences
that a check finds. The expressions are those of assertion trees, so the engine's
dialect runs them; chainsaw's additions are defined here. Next: run.py. May touch:
nothing but the clock. Source: chainsaw "Expressions", "Assertion trees";
docs/behaviour/engine 6.7.
"""

import datetime as dt
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from kyverno_mp.errors import Error
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime

Names = Mapping[str, Any]
"""Bindings by name, without the dollar sign."""

_EXPRESSION: Final = re.compile(r"\((.+)\)")
_REWRITTEN: Final = (
    (re.compile(r"trim_space\(([^()]*)\)"), r"""trim(\1, `" \\t\\n\\r"`)"""),
    (re.compile(r"x_k8s_server_version\([^()]*\)"), "$server_version"),
)
"""Functions that chainsaw adds, expressed with functions of the engine."""

_ESCAPED: Final = re.compile(r"\\(.+)\\")


class _Bound:
    """The ``$names`` of one evaluation, also as the scope of an assertion."""

    operation = ""

    def __init__(self, names: Names) -> None:
        self.root = dict(names)
        self.runtime = Runtime(
            now=lambda: dt.datetime.now(dt.UTC), monotonic_ns=time.monotonic_ns
        )

    def ensure(self, query: str) -> None:
        """Do nothing: every name is defined."""

    def get(self, name: str, default: Any, /) -> Any:
        """Return the value of ``$name``."""
        return self.root.get(name[1:], default)


def evaluate(text: str, names: Names, current: Any = None) -> Any:
    """Evaluate one expression; raises the engine's Error."""
    bound = _Bound(names)
    bound.runtime.bindings = bound
    query = link_dialect(parse(_in_words_of_the_engine(text), community=True))
    return query(bound.runtime, current)


def fill(value: Any, names: Names) -> Any:
    """Replace every text ``(expression)`` below ``value``; keys stay as they are."""
    if isinstance(value, dict):
        return {key: fill(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    if not isinstance(value, str):
        return value
    if escaped := _ESCAPED.fullmatch(value):
        return escaped[1]
    if expression := _EXPRESSION.fullmatch(value):
        return _as_json(evaluate(expression[1], names))
    return value


def fill_reference(wanted: dict[str, Any], names: Names) -> dict[str, Any]:
    """Fill only the object reference; the rest is an assertion tree."""
    filled = dict(wanted)
    for name in ("apiVersion", "kind"):
        filled[name] = fill(wanted.get(name), names)
    meta = wanted.get("metadata")
    if isinstance(meta, dict):
        parts = {
            key: meta[key] for key in ("name", "namespace", "labels") if key in meta
        }
        filled["metadata"] = {**meta, **fill(parts, names)}
    return filled


def problems(tree: Any, payload: Any, names: Names) -> list[str]:
    """Compare a value with an assertion tree; return the differences."""
    try:
        program = link_assertion(parse_assertion(_translated(tree)))
        return [one.message for one in program.evaluate(payload, _Bound(names))]
    except Error as error:
        return [error.message]


def _as_json(value: Any) -> Any:
    """Return whole numbers as Kubernetes requires: JMESPath has floats only."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _translated(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            _in_words_of_the_engine(str(key)): _translated(value)
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [_translated(item) for item in tree]
    return _in_words_of_the_engine(tree) if isinstance(tree, str) else tree


def _in_words_of_the_engine(text: str) -> str:
    if "(" in text:
        for pattern, replacement in _REWRITTEN:
            text = pattern.sub(replacement, text)
    return text
