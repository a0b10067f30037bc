"""Find reads of GlobalContextEntries in namespaced policies, which are not allowed.

Room: policy. Takes: a document or a part of it, which entries are opened to namespaces.
Gives: upstream's reasons. Next: policy/review.py,
compiler/cel_kinds/review.py.
Source: Kyverno 1.19.1 (an entry may hold data of any namespace).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Call, Const, Ident, Node
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.expr.effects import NO_GLOBAL_REFERENCE
from kyverno_mp.expr.template.scan import find_variables
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.ports import Opens

_VARIABLE = "globalContext"
_READS = frozenset({"get", "Get"})


def closed_reference(part: msgspec.Struct, namespace: str, opens: Opens) -> str:
    """Return the reason to reject a context entry anywhere in the part, or ""."""
    for entry in records(part):
        if not isinstance(entry, ContextEntry) or entry.global_reference is None:
            continue
        name = entry.global_reference.name
        if find_variables(name) or not opens(name.partition(".")[0], namespace):
            return NO_GLOBAL_REFERENCE
    return ""


def reads_closed(spec: msgspec.Struct, namespace: str, opens: Opens) -> bool:
    """Return whether an expression anywhere in a policy in CEL reads a closed entry."""
    return any(
        expression_reads(expression, namespace, opens)
        for expression in expressions(spec)
    )


def expression_reads(expression: str, namespace: str, opens: Opens) -> bool:
    """Return whether the expression uses ``globalContext``, except for opened entries.

    KYVERNO: local variables with this name count.
    """
    if _VARIABLE not in expression:
        return False
    try:
        waiting: list[Any] = [parse(expression)]
    except ExpressionInvalid:
        return False
    while waiting:
        node = waiting.pop()
        if type(node) is Ident and node.name == _VARIABLE:
            return True
        if type(node) is Call and _is_opened(node, namespace, opens):
            waiting.extend(node.args)
        else:
            waiting.extend(below(node))
    return False


def _is_opened(node: Call, namespace: str, opens: Opens) -> bool:
    target: Node | None = node.target
    if type(target) is not Ident or target.name != _VARIABLE:
        return False
    name = node.args[0] if node.args else None
    return (
        node.function in _READS
        and type(name) is Const
        and name.kind == "string"
        and opens(str(name.value), namespace)
    )


def expressions(part: Any) -> Iterator[str]:
    """Yield the text of all fields of expressions, by their names."""
    waiting = [part]
    while waiting:
        node = waiting.pop()
        names = _names(node)
        for name in names:
            value = node[name] if type(node) is dict else getattr(node, name)
            if type(value) is str and str(name).lower().endswith("expression"):
                yield value
        waiting.extend(below(node))


def records(part: Any) -> Iterator[msgspec.Struct]:
    """Yield all records; the free-form bodies of rules contain none."""
    waiting = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, msgspec.Struct):
            yield node
        waiting.extend(below(node))


def _names(node: Any) -> tuple[str, ...]:
    if isinstance(node, msgspec.Struct):
        return node.__struct_fields__
    return tuple(node) if type(node) is dict else ()


def below(node: Any) -> list[Any]:
    """Return the values directly in a record, a map or a list."""
    if isinstance(node, msgspec.Struct):
        return [getattr(node, name) for name in node.__struct_fields__]
    if type(node) is dict:
        return list(node.values())
    return list(node) if isinstance(node, tuple | list) else []
