"""Write objects and lists in CEL, over several lines where a person would.

Room: cli. Takes: JSON with variables, the names of queries. Gives: Parts, and their
text. Next: merge.py, json_patches.py.
Source: docs/behaviour/cel 10.1, 11 (literals of one type only; others need dyn).
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.cli.fix.rewrite.jmespath import value_of
from kyverno_mp.cli.fix.rewrite.query_values import (
    Code,
    Constant,
    Default,
    Names,
    Value,
)
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, is_name, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.expr.template.scan import find_variables, query_of
from kyverno_mp.values.jsonvalue import Json

_LINE: Final = 76
"""The length of the longest part on one line."""


class Fields(NamedTuple):
    """``name{field: value}``; a map with keys in quotes if there is no name."""

    name: str
    pairs: tuple[tuple[str, "Part"], ...]


class Items(NamedTuple):
    """A list."""

    parts: tuple["Part", ...]


class Each(NamedTuple):
    """``head(names, part)``: a macro with a part for each element; or a call."""

    head: str
    names: str
    part: "Part"


class Choice(NamedTuple):
    """``test ? then : other``."""

    test: str
    then: "Part"
    other: "Part"


class Sum(NamedTuple):
    """Several lists as one."""

    parts: tuple["Part", ...]


Part: TypeAlias = str | Fields | Items | Each | Choice | Sum
"""An expression, or a structure of expressions."""


def written(part: Part, indent: str = "") -> str:
    """Return the text of a part; lines after the first begin with ``indent``."""
    line = _on_one_line(part)
    if len(line) + len(indent) <= _LINE or isinstance(part, str):
        return line
    inner = f"{indent}  "
    match part:
        case Fields(name, pairs):
            lines = [_pair(key, value, name, inner) for key, value in pairs]
            return f"{name}{{\n" + ",\n".join(lines) + f"\n{indent}}}"
        case Items(parts):
            lines = [f"{inner}{written(item, inner)}" for item in parts]
            return "[\n" + ",\n".join(lines) + f"\n{indent}]"
        case Each(head, names, body):
            first = f"{names},\n{inner}" if names else f"\n{inner}"
            return f"{head}({first}{written(body, inner)}\n{indent})"
        case Choice(test, then, other):
            first = _operand(written(then, inner), then)
            return f"{test}\n{inner}? {first}\n{inner}: {written(other, inner)}"
        case Sum(parts):
            texts = [_operand(written(item, inner), item) for item in parts]
            return f"\n{indent}+ ".join(texts)
    raise AssertionError(part)


def _pair(key: str, value: Part, name: str, indent: str) -> str:
    return f"{indent}{_key(key, name)}: {written(value, indent)}"


def _key(key: str, name: str) -> str:
    return key if name or key.startswith("'") else literal(key)


def _operand(source: str, part: Part) -> str:
    return f"({source})" if isinstance(part, Choice) else source


def _on_one_line(part: Part) -> str:
    match part:
        case Fields(name, pairs):
            inner = ", ".join(f"{_key(k, name)}: {_on_one_line(v)}" for k, v in pairs)
            return f"{name}{{{inner}}}"
        case Items(parts):
            return f"[{', '.join(map(_on_one_line, parts))}]"
        case Each(head, names, body):
            return f"{head}({names and names + ', '}{_on_one_line(body)})"
        case Choice(test, then, other):
            first = _operand(_on_one_line(then), then)
            return f"{test} ? {first} : {_on_one_line(other)}"
        case Sum(parts):
            return " + ".join(_operand(_on_one_line(item), item) for item in parts)
    return part


def part_of(raw: Json, names: Names, path: str = "") -> Part:
    """Return a value of a policy. Raises: NotRewritten.

    ``path``: the type of a map that has one, such as ``Object.spec``.
    """
    if type(raw) is dict:
        return _map(raw, names, path)
    if type(raw) is list:
        parts = [part_of(item, names, path) for item in raw]
        return Items(tuple(_alike(parts, raw)))
    return scalar_of(raw, names)


def _map(raw: dict[str, Json], names: Names, path: str) -> Part:
    is_struct = bool(path) and bool(raw) and all(map(is_name, raw))
    keys = [key if is_struct else text_of(key, names) for key in raw]
    inner = [
        part_of(value, names, f"{path}.{key}" if is_struct else "")
        for key, value in raw.items()
    ]
    if is_struct:
        return Fields(path, tuple(zip(keys, inner, strict=True)))
    values = _alike(inner, raw.values())
    return Fields("", tuple(zip(keys, values, strict=True)))


def _alike(parts: Sequence[Part], values: Iterable[Json]) -> list[Part]:
    """Return the parts of a literal, which have one type: others become dyn."""
    values = list(values)
    kinds = {type(value) for value in values}
    # A variable alone has any type.
    is_mixed = kinds == {str} and len(set(map(_is_variable, values))) > 1
    if is_mixed:
        return [_dyn(part) for part in parts]
    if kinds <= {str} or kinds in ({int}, {bool}) or len(parts) < 2:  # noqa: PLR2004
        return list(parts)
    if all(isinstance(part, Fields) and part.name for part in parts):
        return list(parts)
    return [_dyn(part) for part in parts]


def _is_variable(source: str) -> bool:
    """Return whether a text is one variable, which keeps its type."""
    found = [*find_variables(source)]
    return [(one.start, one.end) for one in found] == [(0, len(source))]


def _dyn(part: Part) -> Part:
    return f"dyn({part})" if isinstance(part, str) else Each("dyn", "", part)


def scalar_of(raw: Json, names: Names) -> str:
    """Return a scalar, which can be a variable of any type. Raises: NotRewritten."""
    if type(raw) is str:
        return text_of(raw, names)
    if type(raw) is bool:
        return "true" if raw else "false"
    if type(raw) is int:
        return str(raw)
    raise NotRewritten(f"the value {raw}")


def text_of(source: str, names: Names) -> str:
    """Return a text with variables; a variable alone keeps its type."""
    if "$(" in source:
        raise NotRewritten("a reference $(...)")
    parts: list[str] = []
    end = 0
    for variable in find_variables(source):
        if source[end : variable.start]:
            parts.append(literal(source[end : variable.start]))
        is_alone = variable.start == 0 and variable.end == len(source)
        end = variable.end
        query, _ = query_of(variable.variable)
        value = value_of(query, names)
        parts.append(any_value(value) if is_alone else _string(value))
    if source[end:] or not parts:
        parts.append(literal(source[end:]))
    whole = " + ".join(parts)
    if "{{" in whole:
        raise NotRewritten("variables in variables")
    return whole


def any_value(value: Value) -> str:
    """Return the expression of a value, an error if it is missing."""
    match value:
        case Typed() | Code():
            return value.plain
        case Default(Typed(kind="string") as inner, str(constant)):
            return _or_text(inner, constant)
        case Constant(constant) if type(constant) in (str, int, bool):
            return scalar_of(constant, {})
    raise NotRewritten("a variable that is no field")


def _or_text(inner: Typed, constant: str) -> str:
    empty = inner.default("''")
    if not constant:
        return empty
    return f"({empty} != '' ? {inner.plain} : {literal(constant)})"


def _string(value: Value) -> str:
    match value:
        case Typed(kind="string") | Code(kind="string") | Default():
            return any_value(value)
        case Typed(kind="numeric" | "boolean") | Code(kind="numeric" | "boolean"):
            return f"string({value.plain})"
        case Constant(str(source)):
            return literal(source)
    raise NotRewritten("a variable of unknown type in a text")


def operation(name: str, pointer: str, value: Part | None = None) -> Part:
    """Return a list of one operation."""
    return Items((Fields("JSONPatch", change(name, literal(pointer), value)),))


def change(
    name: str, pointer: str, value: Part | None = None
) -> tuple[tuple[str, Part], ...]:
    """Return the fields of an operation; ``pointer``: an expression."""
    result: list[tuple[str, Part]] = [("op", literal(name)), ("path", pointer)]
    if value is not None:
        result.append(("value", value))
    return tuple(result)
