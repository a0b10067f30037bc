"""Check that every supported API server accepts match conditions of a webhook.

Room: compiler. Takes: CEL expressions. Gives: whether they can be registered.
Next: controllers/webhook_config.
Source: Kubernetes admissionregistration/v1 (variables of match conditions),
apiserver/pkg/cel/environment (the functions of each version).

A webhook configuration is accepted as a whole or not at all: one condition with a
function that an older API server lacks would block the webhooks of all policies. Such a
condition is not registered, and the workers evaluate it.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.compiler.rules.cel import cel_environment, compile_text
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import oldest_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Ident,
    ListLit,
    Macro,
    MapLit,
    Node,
    Select,
)
from kyverno_mp.expr.cel.syntax.parse import children

_VARIABLES: Final = ("object", "oldObject", "request")
_MACROS: Final = frozenset({"all", "exists", "existsOne", "map", "filter"})
_COMPARING: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_PREFIXES: Final = frozenset({"startsWith", "endsWith"})
_SMALL: Final = frozenset(
    {
        ("request", "userInfo", "groups"),
        *(
            (name, "metadata", field)
            for name in ("object", "oldObject")
            for field in ("labels", "annotations")
        ),
    }
)
"""Lists and maps in which a look-up is cheap."""
_CONSTANT_COST: Final = frozenset({"&&", "||", "!_", "-_", "?:", "_[_]", "size"})
_NEW_SPELLING: Final = "existsOne"
"""The new spelling of ``exists_one``; both parse to the same node."""


def are_accepted_everywhere(expressions: Iterable[str]) -> bool:
    """Return whether every supported API server accepts all of the conditions."""
    complete = cel_environment({}, params=False, authorizer=False)
    variables = {name: complete.variables[name] for name in _VARIABLES}
    environment = Environment(variables, complete.records, library=oldest_library())
    return all(_is_accepted(expression, environment) for expression in expressions)


def are_cheap(expressions: Iterable[str]) -> bool:
    """Return whether the cost of accepted conditions hardly depends on the object.

    K8S: an API server that has spent its cost limit on a condition ends with an error,
    for all policies that share it; with failurePolicy Ignore nobody is asked.
    """
    complete = cel_environment({}, params=False, authorizer=False)
    variables = {name: complete.variables[name] for name in _VARIABLES}
    environment = Environment(variables, complete.records, library=oldest_library())
    return all(_is_cheap(expression, environment) for expression in expressions)


def _is_cheap(source: str, environment: Environment) -> bool:
    node = compile_text(source, environment, types.BOOL)[0].node
    level = [] if node is None else [node]
    while level:
        if not all(map(_is_cheap_node, level)):
            return False
        level = [below for above in level for below in children(above)]
    return node is not None


def _is_cheap_node(node: Node) -> bool:
    if type(node) is not Call:
        return type(node) is not Macro
    terms = node.args if node.target is None else (node.target, *node.args)
    if node.function in _COMPARING:
        # K8S: costs as much as the shorter side is long.
        return any(map(_is_literal, terms))
    if node.function == "in":
        return _is_literal(terms[1]) or _is_small(terms[1])
    if node.function in _PREFIXES:
        return _is_literal(terms[1])
    return node.function in _CONSTANT_COST


def _is_small(node: Node) -> bool:
    """Return whether a look-up in the value is cheap: a map, or the user's groups.

    SAFETY: only at places whose type the API server checks; whoever writes an object
    decides what stands elsewhere in it, e.g. a long list.
    """
    path: list[str] = []
    while type(node) is Select:
        path.append(node.field)
        node = node.operand
    return type(node) is Ident and (node.name, *reversed(path)) in _SMALL


def _is_literal(node: Node) -> bool:
    if type(node) is ListLit:
        return all(map(_is_literal, node.items))
    return type(node) is Const


def _is_accepted(source: str, environment: Environment) -> bool:
    if _NEW_SPELLING in source:
        return False
    compiled = compile_text(source, environment, types.BOOL)[0]
    return not compiled.error and compiled.node is not None and _is_old(compiled.node)


def _is_old(node: Node) -> bool:
    """Return whether Kubernetes 1.27 has the syntax: no optionals or newer macros."""
    level: list[Node] = [node]
    while level:
        if not all(map(_is_old_node, level)):
            return False
        level = [below for above in level for below in children(above)]
    return True


def _is_old_node(node: Node) -> bool:
    if type(node) is Select or type(node) is ListLit:
        return not node.optional
    if type(node) is MapLit:
        return not any(optional for *_, optional in node.entries)
    if type(node) is Macro:
        return node.kind in _MACROS and len(node.names) == 1
    return type(node) is not Call or node.function != "_[?_]"
