"""Evaluate assertion trees on plain data, without a request.

Room: cli. Takes: trees, payloads, named values. Gives: the violations.
Next: cli/testing/checks, json_scan. May touch: the clock.
Source: docs/behaviour/engine 6.7; docs/behaviour/cli 15 (checks), 19 (json scan).
"""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.assertion.link import AssertionProgram, link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion, parse_expression
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json


def new_runtime() -> Runtime:
    """Return a runtime with a full budget and the real clocks."""
    return Runtime(
        now=lambda: datetime.now(UTC).astimezone(),
        monotonic_ns=time.monotonic_ns,
        random_bytes=os.urandom,
    )


class Named:
    """The scope of an assertion, with all named values loaded."""

    operation = ""

    def __init__(self, values: dict[str, Json]) -> None:
        self.root = values
        self.runtime = new_runtime()

    def ensure(self, query: str) -> None:
        """Do nothing, because no value is loaded late."""


def program_of(tree: Json) -> AssertionProgram:
    """Parse and link a tree. Raises: PolicyInvalid if it is too deep."""
    return link_assertion(parse_assertion(tree))


def violations(
    program: AssertionProgram,
    payload: dict[str, Json],
    named: dict[str, Json] | None = None,
) -> list[str]:
    """Return the messages of the violations. Raises: ExpressionFailed."""
    return [found.text for found in program.evaluate(payload, Named(named or {}))]


def aggregated(texts: Sequence[str]) -> str:
    """Join error messages in the format of Kubernetes."""
    unique = list(dict.fromkeys(texts))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


class _Bindings:
    """``$name`` of values computed by ``expand``."""

    def __init__(self, named: dict[str, Json]) -> None:
        self._named = named

    def get(self, name: str, default: Json, /) -> Json:
        return self._named.get(name[1:], default)


def search(statement: str, payload: Json, named: dict[str, Json]) -> Json:
    """Run one JMESPath of the assertion dialect. Raises: InputError."""
    runtime = new_runtime()
    runtime.bindings = _Bindings(named)
    return link_dialect(parse(statement, community=True))(runtime, payload)


def expand(value: Json, payload: Json, named: dict[str, Json]) -> Json:
    """Replace strings that are expressions by their results. Raises: InputError."""
    if type(value) is dict:
        return {key: expand(item, payload, named) for key, item in value.items()}
    if type(value) is list:
        return [expand(item, payload, named) for item in value]
    if type(value) is not str:
        return value
    expression = parse_expression(value)
    if expression is None or not expression.computed:
        return value
    return search(expression.statement, payload, named)
