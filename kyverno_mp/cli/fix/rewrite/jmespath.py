"""Rewrite JMESPath queries as values that CEL can test.

Room: cli. Takes: a query, the names it can use. Gives: a Value. Next:
conditions.py, which tests it.
Source: docs/behaviour/engine 3, 9; expr/jmespath/link.py (a missing field is an error
only where the whole query is a path; elsewhere it is null).
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.cli.fix.rewrite.query_values import (
    Code,
    Constant,
    Default,
    Loop,
    Moment,
    Names,
    Stream,
    Value,
    present,
)
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed, name_for
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.values.jsonvalue import Json

_LETTERS: Final = "eijklmn"


def value_of(query: str, names: Names, current: Value | None = None) -> Value:
    """Return the value of a query. Raises: NotRewritten.

    ``current``: the value that is queried, if it is not the context with its names.
    """
    return _value(parse(query), names, current)


def _refused(node: nodes.Node) -> NotRewritten:
    name = f"{node.name}()" if isinstance(node, nodes.Function) else type(node).__name__
    return NotRewritten(f"JMESPath {name}")


def _value(node: nodes.Node, names: Names, current: Value | None = None) -> Value:
    match node:
        case nodes.Field(name):
            return _named(name, names, current)
        case nodes.Current() | nodes.Identity() if current is not None:
            return current
        case nodes.Literal(value):
            return Constant(int(value) if _is_whole(value) else value)
        case nodes.Subexpression(left, right):
            known = names.get(_dotted(node)) if current is None else None
            if known is not None:
                return known
            return _below(_value(left, names, current), right, names)
        case nodes.Pipe(left, right):
            return _value(right, names, _value(left, names, current))
        case nodes.IndexExpression(left, nodes.Index(position)):
            return _at(_value(left, names, current), position)
        case nodes.Or(left, right):
            return _or(_value(left, names, current), _value(right, names, current))
        case nodes.Function(name, arguments) if name is not None:
            return _called(node, [_value(one, names, current) for one in arguments])
    return _collected(node, names, current)


def _collected(node: nodes.Node, names: Names, current: Value | None) -> Value:
    match node:
        case nodes.Projection(nodes.Flatten(left), right):
            return _projected(_flat(_value(left, names, current)), right, names)
        case nodes.Flatten(left):
            return _flat(_value(left, names, current))
        case nodes.Projection(left, right):
            return _projected(elements(_value(left, names, current)), right, names)
        case nodes.FilterProjection(left, right, condition):
            stream = elements(_value(left, names, current))
            *outer, last = stream.loops
            test = _truth(condition, names, stream.value)
            kept = last._replace(filters=(*last.filters, test))
            return _projected(Stream((*outer, kept), stream.value), right, names)
    raise _refused(node)


def _is_whole(value: Json) -> bool:
    return type(value) is float and value.is_integer()


def _named(name: str, names: Names, current: Value | None) -> Value:
    if current is not None and not name.startswith("{{"):
        return _field(current, name)
    if not name:
        # A quoted name without characters, mostly meant as an empty text.
        return Constant(None)
    if name not in names:
        raise NotRewritten(f"variable {name}")
    return names[name]


def _dotted(node: nodes.Node) -> str:
    """Return ``a.b`` for a chain of plain names, "" for other nodes."""
    if isinstance(node, nodes.Field):
        return node.name
    if isinstance(node, nodes.Subexpression):
        left, right = _dotted(node.left), _dotted(node.right)
        return f"{left}.{right}" if left and right else ""
    return ""


def _field(value: Value, name: str) -> Value:
    if isinstance(value, Stream):
        return Stream(value.loops, value.value.field(name))
    if isinstance(value, Typed):
        return value.field(name)
    raise NotRewritten(f"JMESPath field {name}")


def _below(left: Value, right: nodes.Node, names: Names) -> Value:
    if isinstance(right, nodes.Function) and isinstance(left, Stream):
        return _each(left, right, names)
    if isinstance(right, nodes.MultiSelectList) and isinstance(left, Typed):
        return _together(left, right)
    return _value(right, names, left)


def _at(value: Value, position: int) -> Value:
    """Return an element, which is null if only the list is too short."""
    if not isinstance(value, Typed) or value.kind != "list" or position < 0:
        raise NotRewritten("JMESPath IndexExpression")
    return Default(value.at(position), None)


def _each(stream: Stream, node: nodes.Function, names: Names) -> Value:
    """Return the results of a function for each element."""
    inner = stream.value._replace(maybe="")
    arguments = [_value(one, names, inner) for one in node.arguments]
    found = _called(node, arguments)
    if not isinstance(found, Code) or found.kind != "boolean":
        raise _refused(node)
    loops = stream.loops
    if stream.value.maybe:
        *outer, last = loops
        filters = (*last.filters, present(stream.value))
        loops = (*outer, last._replace(filters=filters))
    return Stream(loops, Typed(found.plain, "", ("b",)))


def _together(holder: Typed, node: nodes.MultiSelectList) -> Value:
    """Return the lists of several fields as one list."""
    fields = [child.name for child in node.children if isinstance(child, nodes.Field)]
    if len(fields) != len(node.children):
        raise _refused(node)
    # Required lists first, as in a manifest.
    parts = sorted(
        (holder.field(name) for name in fields), key=lambda one: one.maybe != ""
    )
    if any(part.kind != "list" for part in parts):
        raise NotRewritten("a list of values that are not lists")
    joined = " + ".join(part.default("[]") for part in parts)
    return Typed(f"({joined})", "", _lists_of(parts))


def _items_of(value: Typed) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one[2:] for one in value.notations))


def _lists_of(parts: Iterable[Typed]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"[]{one}" for part in parts for one in part.notations))


def elements(value: Value) -> Stream:
    """Return the elements of a list. Raises: NotRewritten."""
    if isinstance(value, Stream):
        return value
    if not isinstance(value, Typed) or value.kind not in ("list", ""):
        raise NotRewritten("a projection of a value that is not a list")
    name = _name_for(value.plain, 0)
    return Stream((Loop(value, name),), value.element(name))


def _flat(value: Value) -> Stream:
    """Return the elements of a list, and of the lists in it."""
    if isinstance(value, Typed) and all(
        one.startswith("[][") for one in value.notations or ("",)
    ):
        # Several lists that were joined.
        return elements(value._replace(notations=_items_of(value)))
    stream = elements(value)
    if stream is value and stream.value.kind in ("list", ""):
        if stream.value.kind == "":
            raise NotRewritten("a projection of a value of unknown type")
        name = _name_for(stream.value.plain, len(stream.loops))
        loop = Loop(stream.value, name)
        return Stream((*stream.loops, loop), stream.value.element(name))
    if stream is not value and stream.value.kind == "list":
        raise NotRewritten("a list of lists")
    return stream


def _name_for(plain: str, depth: int) -> str:
    return name_for(plain, _LETTERS[depth])


def _projected(stream: Stream, right: nodes.Node, names: Names) -> Value:
    if isinstance(right, nodes.Identity):
        return stream
    # The right side sees one element at a time.
    if isinstance(right, nodes.Function):
        raise _refused(right)
    return _value(right, names, stream)


def _or(left: Value, right: Value) -> Value:
    if not isinstance(right, Constant):
        raise NotRewritten("JMESPath || with a value that is not constant")
    if isinstance(left, Code):
        return left
    if isinstance(left, Typed | Stream):
        return Default(left, right.value)
    raise NotRewritten("JMESPath ||")


def _called(node: nodes.Function, arguments: list[Value]) -> Value:
    if node.name == "length" and len(arguments) == 1:
        return Code(_size(arguments[0]), "numeric")
    match (node.name, *arguments):
        case ("contains", _, Constant(str(text))):
            return _contains(arguments[0], text)
        case ("time_since", Constant(""), Moment(plain), Constant("")):
            return Code(f"time.now() - timestamp({plain})", "duration")
        case ("keys", Typed() as value) if value.kind == "map":
            return Stream((Loop(value, "key"),), Typed("key", "", ("s",)))
        case ("to_upper", Typed() as value) if value.kind == "string":
            return Code(f"{value.plain}.upperAscii()", "string")
        case ("to_lower", Typed() as value) if value.kind == "string":
            return Code(f"{value.plain}.lowerAscii()", "string")
        case ("to_array", Stream() as value):
            # A missing list becomes a list of null.
            return Default(value, [])
        case ("starts_with" | "ends_with", Typed() as value, Constant(str(text))) if (
            value.kind == "string"
        ):
            method = "startsWith" if node.name == "starts_with" else "endsWith"
            return Code(f"{value.plain}.{method}({literal(text)})", "boolean")
    raise _refused(node)


def _size(value: Value) -> str:
    match value:
        case Typed() if value.kind in ("list", "map", "string"):
            return f"size({value.plain})"
        case Default(Typed() as inner, constant) if not constant:
            empty = {"list": "[]", "map": "{}", "string": "''"}.get(inner.kind)
            if empty is not None:
                return f"size({inner.default(empty)})"
        case Stream((Loop(items, name, filters),), inner):
            return _size_of_loop(items, name, filters, inner, lenient=False)
        case Default(Stream((Loop(items, name, filters),), inner), constant) if (
            not constant
        ):
            return _size_of_loop(items, name, filters, inner, lenient=True)
    raise NotRewritten("JMESPath length()")


def _size_of_loop(
    items: Typed, name: str, filters: tuple[str, ...], inner: Typed, *, lenient: bool
) -> str:
    clauses = [*filters, *([present(inner)] if inner.maybe else [])]
    whole = items.default("[]") if lenient else items.plain
    if clauses:
        whole += f".filter({name}, {' && '.join(clauses)})"
    return f"size({whole})"


def _contains(value: Value, text: str) -> Code:
    match value:
        case Typed() if value.kind == "string":
            return Code(f"{value.plain}.contains({literal(text)})", "boolean")
        case Typed() if value.kind == "list":
            return Code(f"{literal(text)} in {value.plain}", "boolean")
        case Stream() | Default(Stream()):
            lenient = isinstance(value, Default)
            stream = value.value if isinstance(value, Default) else value
            assert isinstance(stream, Stream)
            test = f"{stream.value.plain} == {literal(text)}"
            return Code(stream.quantified("exists", test, lenient=lenient), "boolean")
    raise NotRewritten("JMESPath contains()")


def _truth(node: nodes.Node, names: Names, current: Value) -> str:
    """Return an expression for a condition on an element."""
    match node:
        case nodes.And(left, right):
            return f"{_truth(left, names, current)} && {_truth(right, names, current)}"
        case nodes.Or(left, right):
            return (
                f"({_truth(left, names, current)} || {_truth(right, names, current)})"
            )
        case nodes.Not(child):
            return f"!({_truth(child, names, current)})"
        case nodes.Comparator("==" | "!=" as operator, left, right):
            value, other = (_value(one, names, current) for one in (left, right))
            if isinstance(value, Typed) and isinstance(other, Constant):
                return _compared(value, operator, other.value)
            if isinstance(value, Typed) and isinstance(other, Code | Typed):
                return _compared_names(value, operator, other)
        case nodes.Function("contains", (place, nodes.Literal(str(text)))) | (
            nodes.Subexpression(
                place,
                nodes.Function("contains", (nodes.Current(), nodes.Literal(str(text)))),
            )
        ):
            value = _value(place, names, current)
            if isinstance(value, Typed) and value.kind == "list":
                return f"{literal(text)} in {value.default('[]')}"
    raise _refused(node)


def _compared_names(value: Typed, operator: str, other: Code | Typed) -> str:
    # A name is never empty, so a missing value differs from it.
    if not other.is_name or value.kind != "string" or other.kind != "string":
        raise NotRewritten("JMESPath comparison")
    return f"{value.default(chr(39) * 2)} {operator} {other.plain}"


def _compared(value: Typed, operator: str, constant: Json) -> str:
    if type(constant) is str and value.kind == "string":
        if not constant:
            raise NotRewritten("a JMESPath comparison with an empty text")
        return f"{value.default(chr(39) * 2)} {operator} {literal(constant)}"
    if type(constant) is bool and value.kind == "boolean":
        other = "false" if constant else "true"
        known = "true" if constant else "false"
        return f"{value.default(other)} {operator} {known}"
    raise NotRewritten("JMESPath comparison")
