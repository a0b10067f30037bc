"""Find calls in JMESPath queries that always fail.

Room: policy. Takes: a rule as written. Gives: paths with reasons. Next:
cli/lint/checks.py, cli/sources/exceptions.py.
Source: docs/behaviour/engine 9.1, 9.2: function names and argument counts are checked
when a call runs, so such a policy is stored and its rule fails on every request.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, call_fault
from kyverno_mp.expr.jmespath.nodes import Function, Node, children_of
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.policy.checks.rules.variables import queries_of
from kyverno_mp.values.jsonvalue import Json

_QUERIES: Final = frozenset({"jmesPath", "list"})
"""Fields whose whole value is a query."""
_OTHER_DIALECT: Final = frozenset({"assert"})
"""Fields whose calls use another set of functions."""


def call_faults(rule: Json) -> Iterator[tuple[str, str]]:
    """Yield (path below the rule, reason) of failing calls, without duplicates."""
    reported: set[tuple[str, str]] = set()
    for query, path in queries_in(rule, ""):
        try:
            root = parse(query)
        except ExpressionInvalid:
            continue  # reported by the policy's checks
        for reason in _faults(root):
            if (path, reason) not in reported:
                reported.add((path, reason))
                yield path, reason


def queries_in(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield (query, path) of each query, also of those that do not parse."""
    if type(value) is dict:
        for key, item in value.items():
            field_path = f"{path}.{key}"
            if key in _QUERIES and type(item) is str and "{{" not in item:
                yield item, field_path
            elif key not in _OTHER_DIALECT:
                yield from queries_in(item, field_path)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from queries_in(item, f"{path}[{index}]")
    elif type(value) is str:
        yield from ((query, path) for query in queries_of(value))


def _faults(root: Node) -> Iterator[str]:
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(children_of(node))
        if isinstance(node, Function):
            reason = call_fault(KYVERNO, node.name, len(node.arguments))
            if reason:
                yield f"{node.name}: {reason}"
