"""Implement random strings that match a regular expression.

Room: expr. Takes: Runtime (its ``random_bytes``) and checked arguments. Gives: function
rows. Next: calls.py.
Source: docs/behaviour/engine 9.2 (random).
"""

from typing import Final

from kyverno_mp.expr.jmespath.functions.entry import STRING, FunctionEntry
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.jmespath.random_text import generate
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json


def _random(runtime: Runtime, pattern: str) -> Json:
    if not pattern:
        raise fail("no pattern provided")
    return generate(pattern, runtime)


FUNCTIONS: Final = (
    FunctionEntry(
        "random",
        (STRING,),
        _random,
        STRING,
        "Generates a random sequence of characters",
    ),
)
