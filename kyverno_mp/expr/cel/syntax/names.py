"""Distinguish a qualified name (``sets.contains``) from a member of a value.

Room: expr. Takes: nodes, the Library, the bound names. Gives: full names, "" for
members of values. Next: expr/cel/check.py and expr/cel/linking/expressions.py, which
must agree.
Source: the CEL language definition, names.
"""

from collections.abc import Collection

from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.nodes import Call, Ident, Node, Select


def qualified_name(node: Node) -> str:
    """Return ``a.b.c`` for plain selections on a name; "" for other nodes."""
    parts = []
    while type(node) is Select and not (node.test or node.optional):
        parts.append(node.field)
        node = node.operand
    if type(node) is not Ident:
        return ""
    return ".".join([node.name, *reversed(parts)])


def qualified_call(node: Call, library: Library, bound: Collection[str]) -> str:
    """Return the name of the namespaced function called; "" for a member call.

    A bound name hides a namespace; a variable of the environment does not.
    """
    root: Node | None = node.target
    while type(root) is Select:
        root = root.operand
    if type(root) is not Ident or root.name not in library.roots or root.name in bound:
        return ""
    assert node.target is not None
    name = f"{qualified_name(node.target)}.{node.function}"
    return name if name in library.functions else ""
