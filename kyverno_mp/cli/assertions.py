"""Evaluate assertion trees on plain data, without a request.

Room: cli. Takes: trees, payloads, named values. Gives: the violations.
Next: cli/testing/checks, cli/scan/scope. May touch: the clock.
Source: docs/behaviour/engine 6.7; docs/behaviour/cli 15 (checks), 19 (json scan).
"""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from kyverno_mp.expr.assertion.link import AssertionProgram, link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion
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
    return [
        violation.message for violation in program.evaluate(payload, Named(named or {}))
    ]


def aggregated(messages: Sequence[str]) -> str:
    """Join error messages in the format of Kubernetes."""
    unique = list(dict.fromkeys(messages))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
