"""Find the places of the object that CEL expressions read, and their values.

Room: cli. Takes: expressions and variables. Gives: paths with the constants that the
expressions compare. Next: inputs.py.
Source: the CEL language definition.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Call, Const, Ident, ListLit, Macro, Node, Select
from kyverno_mp.expr.cel.syntax.parse import children, parse
from kyverno_mp.values.jsonvalue import Json

Path = tuple[str | int, ...]
_Names = Mapping[str, Path]
_INDEX: Final = frozenset({"_[_]", "_[?_]"})
_THROUGH: Final = frozenset({"orValue", "value", "optMap", "trim", "lowerAscii"})
_PAIR: Final = 2
_ROOTS: Final[_Names] = {"object": (), "oldObject": ()}
_CHANGED: Final = str.maketrans(dict.fromkeys("^$\\.*+?()[]{}|", ""))


def places(
    variables: Iterable[tuple[str, str]], expressions: Iterable[str]
) -> Iterator[tuple[Path, Json]]:
    """Yield (path, value) for all reads, parents before the fields below them."""
    named: dict[str, Path] = {}
    nodes = []
    for name, text in variables:
        node = _parsed(text)
        if node is not None:
            path = _path(node, _ROOTS, named)
            if path is not None:
                named[name] = path
            nodes.append(node)
    nodes += filter(None, map(_parsed, expressions))
    for node in nodes:
        yield from _read(node, _ROOTS, named)


def _parsed(text: str) -> Node | None:
    try:
        return parse(text) if text else None
    except ExpressionInvalid:
        return None


def _path(node: Node, names: _Names, variables: _Names) -> Path | None:
    match node:
        case Ident(name):
            return names.get(name)
        case Select(Ident("variables"), name):
            return variables.get(name)
        case Select(Ident("request"), "object" | "oldObject"):
            return ()
        case Select(operand, name):
            path = _path(operand, names, variables)
            return None if path is None else (*path, name)
        case Call(function, None, (operand, Const(_, key))) if function in _INDEX:
            path = _path(operand, names, variables)
            return None if path is None else (*path, key if type(key) is str else 0)
        case Call("?:", None, (_, first, second)):
            found = _path(first, names, variables)
            return _path(second, names, variables) if found is None else found
        case Call("+", None, (first, _)):
            return _path(first, names, variables)
        case Call(function, target, _) if target is not None and function in _THROUGH:
            return _path(target, names, variables)
        case Macro("filter", source):
            return _path(source, names, variables)
        case Macro("map", source, (name, *_), body) if body:
            path = _path(source, names, variables)
            inner = names if path is None else {**names, name: (*path, 0)}
            found = _path(body[-1], inner, variables)
            return found[:-1] if found and found[-1] == 0 else found
    return None


def _read(node: Node, names: _Names, variables: _Names) -> Iterator[tuple[Path, Json]]:
    path = _path(node, names, variables)
    if path:
        yield from parents(path)
    if isinstance(node, Macro):
        source = _path(node.range, names, variables)
        yield from _read(node.range, names, variables)
        if source is not None:
            element = source if node.kind.startswith(("opt", "bind")) else (*source, 0)
            names = {**names, **dict.fromkeys(node.names, element)}
        for part in node.body:
            yield from _read(part, names, variables)
        return
    if isinstance(node, Call):
        yield from _compared(node, names, variables)
    for child in children(node):
        yield from _read(child, names, variables)


def parents(path: Path) -> Iterator[tuple[Path, Json]]:
    """Yield a path, and before it the maps and lists that contain it."""
    for end in range(1, len(path)):
        yield path[:end], [] if type(path[end]) is int else {}
    yield path, "x"


def _compared(
    call: Call, names: _Names, variables: _Names
) -> Iterator[tuple[Path, Json]]:
    """Yield the constants beside a path in one call."""
    given = (call.target, *call.args) if call.target is not None else call.args
    paths = [_path(one, names, variables) for one in given]
    values = [value for one in given for value in _constants(one)]
    for path in paths:
        if not path:
            continue
        for value in values:
            yield path, value
            if type(value) is str:
                yield path, value.translate(_CHANGED)
                yield (*path, value), "x"
        if call.function == "size":
            yield path, []


def _constants(node: Node) -> Iterator[Json]:
    if isinstance(node, Const) and node.kind in ("bool", "int", "string"):
        yield node.value
    if isinstance(node, ListLit):
        for item in node.items:
            yield from _constants(item)
