"""Detect whether a rule reads more of a review than the object.

Room: compiler. Takes: RuleIR. Gives: reads_review. Next: compiler/build.py names such
rules in the policy; results/records.py sends the results that a scan cannot reproduce.
Source: docs/behaviour/controllers 6.4 (a scan evaluates a CREATE without a user or an
old object); docs/behaviour/engine 3.4, 8.5; docs/pools.md 4.

A rule that reads only the object and its namespace has the same result in a review and
in a scan, so its results are not sent. If the analysis cannot decide, the rule counts
as reading the review: its results are sent, which is cheap and always correct.

Results of deletions are never reported. So a condition with the same result for UPDATE
and CREATE, such as the usual ``{{ request.operation || 'BACKGROUND' }} NotEquals
DELETE``, does not count as reading the review.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.cel.nodes import Ident
from kyverno_mp.expr.conditions.nodes import Condition
from kyverno_mp.expr.conditions.reads import is_operation
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.nodes import Document, Lookup, Rescanned, Variable
from kyverno_mp.expr.template.scan import OPENING, find_variables, query_of
from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.ir.rules import ForEachIR, RuleIR, VariableEntryIR
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordSearch

_CREATE: Final = "CREATE"
_UPDATE: Final = "UPDATE"
_REQUEST: Final = "request"
_SCANNED: Final = frozenset({"object", "namespace"})
"""Fields of ``request`` that a scan can provide."""
_USER: Final = frozenset({"serviceAccountName", "serviceAccountNamespace"})
_CEL_REVIEW: Final = frozenset({"request", "oldObject", "authorizer"})
_ASSERTED: Final = ("admission", "oldObject", "operation", "requestResource")
"""Substrings of names in an assertion's payload that a scan cannot provide."""
_POSITIVE: Final = frozenset({"Equals", "Equal", "In", "AnyIn", "AllIn"})
_NEGATIVE: Final = frozenset({"NotEquals", "NotEqual", "NotIn", "AnyNotIn", "AllNotIn"})
_READING: Final = RecordSearch(
    Assertion, Condition, ForEachIR, Ident, Lookup, Rescanned, VariableEntryIR
)
_READERS: Final = frozenset(
    {
        Assertion,
        Condition,
        Document,
        ForEachIR,
        Ident,
        Lookup,
        Rescanned,
        Variable,
        VariableEntryIR,
    }
)
"""The records that are more than what they contain. PERF: most others are tuples."""
_ELSE, _ROOT, _REVIEW = range(3)
"""Value at the end of a query: any other value, the whole context, ``request``."""


class _ReadsReview(Exception):
    """The query reads data that a scan does not have."""


def reads_review(rule: RuleIR) -> bool:
    """Return whether the result may depend on the operation, the user or old data."""
    if _limits_to_review(rule.match, matching=True):
        return True
    if rule.exclude is not None and _limits_to_review(rule.exclude, matching=False):
        return True
    try:
        _check(
            rule.context,
            rule.preconditions,
            rule.validate,
            rule.exceptions,
            rule.report_properties,
            rule.cel_preconditions,
        )
    except _ReadsReview:
        return True
    return False


def _limits_to_review(block: MatchIR, *, matching: bool) -> bool:
    return any(
        _names_review(resource_filter, matching=matching)
        for resource_filter in block.filters
    )


def _names_review(resource_filter: FilterIR, *, matching: bool) -> bool:
    """Return whether a filter can have different results in a scan and in a review.

    A scan can reproduce the results of a rule that matches only CREATE, but not those
    of a rule that matches only UPDATE or excludes only CREATE.
    """
    if (
        resource_filter.subjects
        or resource_filter.roles
        or resource_filter.cluster_roles
    ):
        return True
    if matching and any(kind.subresource for kind in resource_filter.kinds):
        # Scans do not read subresources.
        return True
    if not resource_filter.operations:
        return False
    creates, updates = (
        _CREATE in resource_filter.operations,
        _UPDATE in resource_filter.operations,
    )
    return updates and not creates if matching else creates and not updates


def _check(*records: Any) -> None:
    """Raise _ReadsReview if any expression in a record reads the review."""
    waiting = [record for record in records if record]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind not in _READERS:
            waiting += _READING.parts(value)
        elif kind is Condition and _is_neutral(value):
            _check_text(value.message)
        elif kind is Ident:
            if value.name in _CEL_REVIEW:
                raise _ReadsReview
        elif kind is Assertion:
            _check_assertion(value.tree)
        else:
            _check_queries(value)
            waiting += _parts(value)


def _check_queries(value: Any) -> None:
    kind = type(value)
    if kind is Lookup:
        if value.node is not None:
            _end(_reached(value.node, _ROOT))
    elif kind is Condition:
        _check_text(value.message)
    elif kind is Rescanned:
        _check_text(value.source)
    elif kind is ForEachIR:
        _check_query(value.list_query)
    elif kind is VariableEntryIR and value.jmes_path is not None:
        _check_path(value.jmes_path)


def _check_path(path: Document) -> None:
    """Check a variable's jmesPath, a query that may itself contain variables."""
    if type(path.source) is not str or not path.is_constant:
        raise _ReadsReview
    _check_query(path.source)


def _parts(value: Any) -> Iterable[Any]:
    if type(value) is Document:
        # The source is only the template's text.
        return () if value.template is None else (value.template,)
    if type(value) is Lookup:
        return ()
    if type(value) is Variable:
        # The variable's other query is used only for deletions.
        return (value.lookup,)
    return _READING.parts(value)


def _check_query(query: str) -> None:
    try:
        node = parse(query)
    except ExpressionInvalid:
        # An invalid query fails in a scan, too.
        return
    _end(_reached(node, _ROOT))


def _check_text(string: str) -> None:
    """Check a string whose variables are found at run time."""
    variables = find_variables(string)
    if len(variables) != string.count(OPENING):
        # A query around a nested variable is known only at run time.
        raise _ReadsReview
    for variable in variables:
        query, _ = query_of(variable.variable)
        if query != "@":
            _check_query(query)


def _end(reached: int) -> None:
    """Check the result of a query: a whole request includes user and operation."""
    if reached != _ELSE:
        raise _ReadsReview


def _reached(node: Node, at: int) -> int:
    """Return the value that a query from ``at`` reaches. Raises: _ReadsReview."""
    match node:
        case nodes.Field(name):
            return _named(name, at)
        case nodes.Identity() | nodes.Current():
            return at
        case nodes.Root() | nodes.Variable() | nodes.Let():
            raise _ReadsReview
        case (
            nodes.Subexpression(left, right)
            | nodes.IndexExpression(left, right)
            | nodes.Pipe(left, right)
            | nodes.Projection(left, right)
            | nodes.ValueProjection(left, right)
        ):
            return _reached(right, _reached(left, at))
        case nodes.FilterProjection(left, right, condition):
            element = _reached(left, at)
            _end(_reached(condition, element))
            return _reached(right, element)
    for child in _children(node):
        _end(_reached(child, at))
    return _ELSE


def _children(node: Any) -> Iterator[Any]:
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if isinstance(value, msgspec.Struct):
            yield value
        elif isinstance(value, tuple):
            for child in value:
                yield child[1] if isinstance(child, tuple) else child


def _named(name: str, at: int) -> int:
    if at == _ROOT:
        if name in _USER:
            raise _ReadsReview
        return _REVIEW if name == _REQUEST else _ELSE
    if at == _REVIEW and name not in _SCANNED:
        raise _ReadsReview
    return _ELSE


def _check_assertion(tree: Json) -> None:
    """Check an assertion, whose keys and strings are expressions."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            waiting += [*value, *value.values()]
        elif type(value) is list:
            waiting += value
        elif type(value) is str and any(name in value for name in _ASSERTED):
            raise _ReadsReview


def _is_neutral(condition: Condition) -> bool:
    """Return whether an operation condition has the same result for CREATE and UPDATE.

    Only constant names are supported, not patterns or ranges.
    """
    if not (is_operation(condition.key) and condition.value.is_constant):
        return False
    value = condition.value.constant
    names = value if type(value) is list else [value]
    if not all(type(name) is str and name.isalpha() for name in names):
        return False
    if condition.operator not in _POSITIVE | _NEGATIVE:
        return False
    return (_CREATE in names) == (_UPDATE in names)
