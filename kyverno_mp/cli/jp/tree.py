"""Print the syntax tree of a JMESPath in the format of the Go program.

Room: cli. Takes: a parsed expression. Gives: text. Next: jp.
Source: docs/behaviour/cli 16; go-jmespath ASTNode.PrettyPrint (names, values,
children).
"""

from typing import Final, NamedTuple

from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

_OPERATORS: Final = {
    "==": "tEQ",
    "!=": "tNE",
    "<": "tLT",
    "<=": "tLTE",
    ">": "tGT",
    ">=": "tGTE",
    "+": "tPlus",
    "-": "tMinus",
    "*": "tMultiply",
    "/": "tDivide",
    "//": "tDiv",
    "%": "tModulo",
}
_NAMES: Final = {
    nodes.Empty: "ASTEmpty",
    nodes.Identity: "ASTIdentity",
    nodes.Current: "ASTCurrentNode",
    nodes.Root: "ASTRootNode",
    nodes.Subexpression: "ASTSubexpression",
    nodes.IndexExpression: "ASTIndexExpression",
    nodes.Flatten: "ASTFlatten",
    nodes.Projection: "ASTProjection",
    nodes.FilterProjection: "ASTFilterProjection",
    nodes.ValueProjection: "ASTValueProjection",
    nodes.Or: "ASTOrExpression",
    nodes.And: "ASTAndExpression",
    nodes.Not: "ASTNotExpression",
    nodes.Pipe: "ASTPipe",
    nodes.ExpressionReference: "ASTExpRef",
    nodes.MultiSelectList: "ASTMultiSelectList",
}


class _Printed(NamedTuple):
    """One node as in Go; ``value`` is "" where Go has nil."""

    name: str
    value: str
    children: tuple["_Printed | Node", ...]


def tree_text(node: Node) -> str:
    """Return the tree, a line for each brace and value; the parser limits the depth."""
    lines: list[str] = []
    _add(lines, node, 0)
    return "\n".join(lines) + "\n"


def _add(lines: list[str], node: "_Printed | Node", indent: int) -> None:
    printed = node if isinstance(node, _Printed) else _printed(node)
    space = " " * indent
    lines.append(f"{space}{printed.name} {{")
    if printed.value:
        lines.append(f"{space}  value: {printed.value}")
    if printed.children:
        lines.append(f"{space}  children: {{")
        for child in printed.children:
            _add(lines, child, indent + 4)
        lines.append(f"{space}  }}")
    lines.append(f"{space}}}")


def _printed(node: Node) -> _Printed:
    match node:
        case nodes.Field(name):
            return _Printed("ASTField", json_text(name), ())
        case nodes.Literal(value):
            literal = "" if value is None else _go_syntax(value)
            return _Printed("ASTLiteral", literal, ())
        case nodes.Index(position):
            return _Printed("ASTIndex", str(position), ())
        case nodes.Slice(start, stop, step):
            parts = ("nil" if p is None else str(p) for p in (start, stop, step))
            return _Printed("ASTSlice", f"[]*int{{{', '.join(parts)}}}", ())
        case nodes.Comparator(operator, left, right):
            return _Printed("ASTComparator", _OPERATORS[operator], (left, right))
        case nodes.Arithmetic(operator, left, right):
            name = "ASTArithmeticBinaryExpression"
            return _Printed(name, _OPERATORS.get(operator, operator), (left, right))
        case nodes.Unary(operator, child):
            name = "ASTArithmeticUnaryExpression"
            return _Printed(name, _OPERATORS.get(operator, operator), (child,))
        case _:
            return _printed_rest(node)


def _printed_rest(node: Node) -> _Printed:
    match node:
        case nodes.Function(name, arguments):
            return _Printed("ASTFunctionExpression", json_text(name), arguments)
        case nodes.MultiSelectHash(pairs):
            return _Printed("ASTMultiSelectHash", "", _pairs("ASTKeyValPair", pairs))
        case nodes.Let(bindings, body):
            bound = _Printed("ASTBindings", "", _pairs("ASTBinding", bindings))
            return _Printed("ASTLetExpression", "", (bound, body))
        case nodes.Variable(name):
            return _Printed("ASTVariable", json_text(name), ())
        case _:
            return _Printed(_NAMES[type(node)], "", nodes.children_of(node))


def _pairs(name: str, pairs: tuple[tuple[str, Node], ...]) -> tuple[_Printed, ...]:
    return tuple(_Printed(name, json_text(key), (child,)) for key, child in pairs)


def _go_syntax(value: Json) -> str:
    """Return a literal in the format of Go's ``%#v``."""
    if type(value) is list:
        return f"[]interface {{}}{{{', '.join(map(_go_item, value))}}}"
    if type(value) is dict:
        parts = (f"{json_text(key)}:{_go_item(value[key])}" for key in sorted(value))
        return f"map[string]interface {{}}{{{', '.join(parts)}}}"
    return json_text(value)


def _go_item(value: Json) -> str:
    return "interface {}(nil)" if value is None else _go_syntax(value)
