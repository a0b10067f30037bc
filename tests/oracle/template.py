"""Substitute variables simply and slowly: a second opinion for template/.

Written from docs/behaviour/engine 3.1 as one walk: every string is scanned, replaced
and scanned again; nothing is split or parsed ahead. Without references and ``@``.
"""

import re

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Scope
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

_VARIABLE = re.compile(r"(^|[^\\])(\{\{(?:\{[^{}]*\}|[^{}])*\}\})")
_ROUNDS = 20
_ASK_STEPS = 20
_TEXT_MAX = 20_000


class Endless(Exception):
    """A string needs more rounds than a test allows."""


def substitute(scope: Scope, value: Json, path: str = "", depth: int = 0) -> Json:
    """Substitute every variable of a document."""
    if depth > _ROUNDS:
        raise Endless
    if isinstance(value, str):
        result = substitute_text(scope, value, path)
        if isinstance(result, list | dict):
            return substitute(scope, result, path, depth + 1)
        return result
    if isinstance(value, list):
        return [
            substitute(scope, item, f"{path}/{i}", depth + 1)
            for i, item in enumerate(value)
        ]
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            name = substitute(scope, key, path, depth + 1)
            if name is None:
                name = key
            if not isinstance(name, str):
                text = f'expected string after substituting variables in key "{key}"'
                raise ExpressionFailed("oracle", text)
            below = f"{path}/" + key.replace("/", "\\/")
            out[name] = substitute(scope, item, below, depth + 1)
        return out
    return value


def substitute_text(scope: Scope, text: str, path: str) -> Json:
    """Substitute one string."""
    value = text
    for _ in range(_ROUNDS):
        found = _VARIABLE.findall(value)
        if not found:
            return value.replace("\\{{", "{{")
        original = value
        shallow = False
        for prefix, variable in found:
            query = variable.replace("{{", "").replace("}}", "").strip()
            shallow = query.startswith("-")
            if shallow:
                query = query[1:].strip()
            result = ask(scope, query, path)
            if original == variable:
                return result
            inserted = result if isinstance(result, str) else json_text(result)
            if shallow:
                inserted = inserted.replace("{{", "\\{{")
            value = value.replace(prefix + variable, prefix + inserted, 1)
            if len(value) > _TEXT_MAX:
                raise Endless
        if shallow:
            return value.replace("\\{{", "{{")
    raise Endless


def ask(scope: Scope, query: str, path: str) -> Json:
    """Evaluate one query of the context; a test limits their number."""
    scope.runtime.steps_left -= _ASK_STEPS
    if scope.runtime.steps_left < 0:
        raise Endless
    if scope.operation == "DELETE":
        query = query.replace("request.object", "request.oldObject")
    prefix = f"failed to resolve {query} at path {path}: "
    if not query.strip():
        raise ExpressionFailed("oracle", prefix + "invalid query (nil)")
    try:
        parsed = search(query)
    except ExpressionInvalid as error:
        text = f"{prefix}incorrect query {query}: {error.message}"
        raise ExpressionFailed("oracle", text) from error
    try:
        return parsed(scope.runtime, scope.root)
    except ExpressionFailed as error:
        text = f"{prefix}JMESPath query failed: {error.message}"
        raise ExpressionFailed("oracle", text) from error
