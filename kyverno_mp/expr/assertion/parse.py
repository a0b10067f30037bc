"""Parse ``validate.assert`` to an assertion tree.

Room: expr.assertion. Takes: the raw value of a policy. Gives: Assertion.
Next: link.link_assertion, compiler.
Source: docs/behaviour/engine 6.7; kyverno-json pkg/engine/assert (parse.go,
expression.go).
"""

from typing import Final, NamedTuple

import re2

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import ASSERTION_DEPTH_MAX
from kyverno_mp.values.jsonvalue import Json

# The syntax of kyverno-json's own expressions; as in Go, ``.`` stops at a line break.
_FOREACH: Final = re2.compile(r"^~(\w+)?\.(.*)")
_BINDING: Final = re2.compile(r"(.*)\s*->\s*(\w+)$")
_ESCAPE: Final = re2.compile(r"^\\(.+)\\$")
_ENGINE: Final = re2.compile(r"^\((?:(\w+):)?(.+)\)$")


class AssertionExpression(NamedTuple):
    """The parsed form of a key or a string of the tree.

    ``statement``: a member's name, or JMESPath if ``computed``. ``place``: the variable
    for the index or key; ``binding``: the variable for the result; "" means none.
    """

    statement: str
    computed: bool = False
    each: bool = False
    place: str = ""
    binding: str = ""


def parse_assertion(raw: Json) -> Assertion:
    """Return the tree of ``validate.assert``.

    Expressions that do not parse are accepted; as in upstream, the rule reports them
    when it runs. Raises: PolicyInvalid (``assertion.depth``).
    """
    return Assertion(_with_floats(raw, ASSERTION_DEPTH_MAX))


def parse_expression(source: str) -> AssertionExpression | None:
    """Parse a key or string; return None if it contains no statement."""
    each, index, binding, computed = False, "", "", False
    if match := _FOREACH.search(source):
        each, index, source = True, match.group(1) or "", match.group(2)
    if match := _BINDING.search(source):
        source, binding = match.group(1), match.group(2)
    if match := _ESCAPE.search(source):
        source = match.group(1)
    elif match := _ENGINE.search(source):
        # KYVERNO: the engine name before the colon is parsed and ignored.
        computed, source = True, match.group(2)
    if not source:
        return None
    return AssertionExpression(source, computed, each, index, binding)


def _with_floats(raw: Json, depth: int) -> Json:
    """Copy the tree with float64 numbers, as upstream's encoding/json decodes them."""
    if depth == 0:
        raise PolicyInvalid("assertion.depth", "assertion tree is nested too deeply")
    spend()
    if type(raw) is int:
        return float(raw) if abs(raw) < 1 << 1023 else float("inf")
    if type(raw) is list:
        return [_with_floats(item, depth - 1) for item in raw]
    if type(raw) is dict:
        return {str(key): _with_floats(raw[key], depth - 1) for key in raw}
    return raw
