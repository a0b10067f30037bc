"""Implement random strings that match a regular expression.

Room: expr. Takes: Runtime (its ``random_bytes``) and checked arguments. Gives: function
rows. Next: calls.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 9.2 (random).
"""

from typing import Final

from kyverno_mp.expr.jmespath.functions.entry import STRING, FunctionEntry
from kyverno_mp.expr.jmespath.functions.regexes import compile_regex
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.jmespath.random_text import generate
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json

_DRAW_BYTES: Final = 200
"""The memory of the closure that draws one character of a pattern."""


def _random(runtime: Runtime, pattern: str) -> Json:
    if not pattern:
        raise fail("no pattern provided")
    compiled = compile_regex(runtime, pattern)
    runtime.charge(8 * len(pattern))
    runtime.charge_bytes(_DRAW_BYTES * len(pattern))
    if type(compiled) is str:
        raise fail(compiled)
    if runtime.random_bytes is None:
        raise fail("random: no source of randomness")
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
