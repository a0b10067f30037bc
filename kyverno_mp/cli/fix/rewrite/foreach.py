"""Rewrite ``foreach`` of a validate rule with the macro ``all``.

Room: cli. Takes: entries of foreach. Gives: an expression that is true if the rule
passes. Next: rules.py.
Source: docs/behaviour/engine 6.3.
"""

from collections.abc import Sequence

from kyverno_mp.cli.fix.rewrite.conditions import conditions_of, has_variables
from kyverno_mp.cli.fix.rewrite.jmespath import elements, value_of
from kyverno_mp.cli.fix.rewrite.pattern import pattern_expression
from kyverno_mp.cli.fix.rewrite.query_values import Names, Stream
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, all_of, any_of
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.cli.fix.rewrite.variables import with_context
from kyverno_mp.policy.fields.validation import ForEachValidation


def foreach_test(entries: Sequence[ForEachValidation], names: Names) -> str:
    """Return the test of all entries. Raises: NotRewritten."""
    lists = [value_of(entry.list, names) for entry in entries]
    tests = []
    for entry, value in zip(entries, lists, strict=True):
        if not isinstance(value, Typed | Stream):
            raise NotRewritten("foreach on a value that is no list")
        tests.append(_entry(entry, elements(value), names))
    return all_of(tests)


def _entry(entry: ForEachValidation, stream: Stream, names: Names) -> str:
    element = stream.value
    own = with_context(entry.context, {**names, "element": element})
    body = _body(entry, own, element)
    if entry.preconditions is not None:
        conditions = conditions_of(entry.preconditions.raw(), own)
        body = f"({conditions}) ? ({body}) : true"
    return stream.quantified("all", body, lenient=True)


def _body(entry: ForEachValidation, names: Names, element: Typed) -> str:
    if entry.foreach is not None or entry.element_scope is not None:
        raise NotRewritten("foreach in foreach, or elementScope")
    if entry.deny is not None:
        if not entry.deny.conditions:
            return "false"
        return f"!({conditions_of(entry.deny.conditions, names)})"
    patterns = [] if entry.pattern is None else [entry.pattern]
    if type(entry.any_pattern) is list:
        patterns += entry.any_pattern
    if any(map(has_variables, patterns)):
        raise NotRewritten("variables in the pattern")
    if element.kind != "map" or not patterns:
        raise NotRewritten("a pattern in foreach for elements that are no maps")
    return any_of(pattern_expression(one, element) for one in patterns)
