"""Run one query on the JSON context, with Kyverno's error messages.

Room: expr. Takes: Lookup records, or query strings known at run time. Gives: closures
from Scope to Json. Next: expr/template/link, expr/template/expand,
program/context/loaders.
May touch: nothing outside its arguments; a bounded cache of parsed queries.
Source: docs/behaviour/engine 3.1, 3.5, 3.7.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.element_path import current_path
from kyverno_mp.expr.template.nodes import Lookup, Variable
from kyverno_mp.expr.template.scan import on_delete
from kyverno_mp.limits import PARSE_CACHE_ENTRIES_MAX
from kyverno_mp.values.jsonvalue import Json

Ask = Callable[[Scope], Json]

_REMEMBERED_TEXT_MAX: Final = 2048
"""Longer queries are parsed each time, so that the cache stays small."""

_PARSED_PER_STEP: Final = 4
_LONG_STEPS: Final = 4


def link_lookup(lookup: Lookup) -> Ask:
    """Link one query; its errors equal the errors of upstream's ``ctx.Query``."""
    expression, node, problem = lookup.text, lookup.node, lookup.error
    if node is None:

        def refuse(scope: Scope) -> Json:
            scope.ensure(expression)
            raise ExpressionFailed("template.query", problem)

        return refuse
    query = link(node)

    def ask(scope: Scope) -> Json:
        scope.ensure(expression)
        try:
            return query(scope.runtime, scope.root)
        except ExpressionFailed as error:
            raise query_failed(error) from error

    return ask


def lookup_for(query: str) -> Ask:
    """Link a query known only at run time."""
    if len(query) > _REMEMBERED_TEXT_MAX:
        return link_lookup(parse_lookup(query))
    return _remembered(query)


@lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)
def _remembered(query: str) -> Ask:
    return link_lookup(parse_lookup(query))


def query_failed(error: ExpressionFailed) -> ExpressionFailed:
    """Wrap an error of the evaluator like ``ctx.Query``."""
    return ExpressionFailed(error.code, f"JMESPath query failed: {error.message}")


def unresolved(query: str, path: str, error: ExpressionFailed) -> ExpressionFailed:
    """Return the error for a variable at a path."""
    return ExpressionFailed(
        error.code, f"failed to resolve {query} at path {path}: {error.message}"
    )


def link_variable(variable: Variable, path: str) -> Ask:
    """Link one variable at its path, including its separate query for DELETE."""
    normal = _named(variable.lookup, path)
    if variable.on_delete is None:
        return normal
    deleting = _named(variable.on_delete, path)

    def choose(scope: Scope) -> Json:
        return (deleting if scope.operation == "DELETE" else normal)(scope)

    return choose


def _named(lookup: Lookup, path: str) -> Ask:
    ask, expression = link_lookup(lookup), lookup.text
    if lookup.node is None:

        def refuse(scope: Scope) -> Json:
            try:
                return ask(scope)
            except ExpressionFailed as error:
                raise unresolved(expression, path, error) from error

        return refuse
    query = link(lookup.node)

    # PERF: the calls of ``ask`` are inlined, which saves a Python frame per variable.
    def named(scope: Scope) -> Json:
        try:
            scope.ensure(expression)
            try:
                return query(scope.runtime, scope.root)
            except ExpressionFailed as error:
                raise query_failed(error) from error
        except ExpressionFailed as error:
            raise unresolved(expression, path, error) from error

    return named


def ask_at(scope: Scope, query: str, path: str) -> Json:
    """Evaluate a variable found during the re-scan of a string."""
    expression = query
    if expression == "@":
        expression = current_path(path, _prefix(scope))
    if scope.operation == "DELETE":
        expression = on_delete(expression)
    # Unless the query is cached, it is parsed and linked.
    scope.runtime.charge(len(expression) // _PARSED_PER_STEP)
    if len(expression) > _REMEMBERED_TEXT_MAX:
        scope.runtime.charge(_LONG_STEPS * len(expression))
    try:
        return lookup_for(expression)(scope)
    except ExpressionFailed as error:
        raise unresolved(expression, path, error) from error


def _prefix(scope: Scope) -> str:
    try:
        lookup_for("target")(scope)
    except ExpressionFailed:
        return "request.object"
    return "target"


def key_text(key: str, substituted: Json) -> str:
    """Return the new name of a key; null keeps the old one.

    Raises: ExpressionFailed if the name is neither string nor null.
    """
    if type(substituted) is str:
        return substituted
    if substituted is None:
        return key
    raise ExpressionFailed(
        "template.key",
        f'expected string after substituting variables in key "{key}"',
    )
