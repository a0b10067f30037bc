"""Find the places of the object that JMESPath queries read, and their values.

Room: cli. Takes: conditions, foreach entries. Gives: paths with the constants beside
them. Next: inputs.py.
Source: docs/behaviour/engine 6.3, 9.1.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kyverno_mp.cli.fix.rewrite.cel_places import Path, parents
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.validation import ForEachValidation
from kyverno_mp.values.jsonvalue import Json

CLUSTER: Final = "\0cluster"
"""First part of the paths of what the rule reads in the cluster; then the name of the
context entry, and the path in the answer."""
REQUEST: Final = "\0request"
"""First part of the paths of the request's own name and namespace."""
_Names = Mapping[str, frozenset[Path]]
_VARIABLE: Final = re.compile(r"\{\{[^{}]*\}\}")
_ROOT: Final[frozenset[Path]] = frozenset({()})
_ROOTS: Final[_Names] = {
    "request.object": _ROOT,
    "request.oldObject": _ROOT,
    "request.name": frozenset({(REQUEST, "name")}),
    "request.namespace": frozenset({(REQUEST, "namespace")}),
}
_NOTHING: Final[frozenset[Path]] = frozenset()


class _Reader:
    """Collects the paths of queries."""

    def __init__(self, names: _Names) -> None:
        self.names = names
        self.seen: dict[Path, None] = {}
        self.constants: list[Json] = []
        self.compared: list[tuple[Path, Json]] = []

    def query(
        self, text: str, current: frozenset[Path] | None = None
    ) -> frozenset[Path]:
        """Return the paths of a query's result."""
        try:
            return self._paths(parse(text), current)
        except ExpressionInvalid:
            return _NOTHING

    def _paths(
        self, node: nodes.Node, current: frozenset[Path] | None
    ) -> frozenset[Path]:
        found = self._found(node, current)
        self.seen.update(dict.fromkeys(sorted(found, key=str)))
        return found

    def _found(
        self, node: nodes.Node, current: frozenset[Path] | None
    ) -> frozenset[Path]:
        match node:
            case nodes.Field(name):
                if current is None:
                    return self.names.get(name, _NOTHING)
                return frozenset((*path, name) for path in current)
            case nodes.Current() | nodes.Identity():
                return current or _NOTHING
            case nodes.Literal(value):
                self.constants.append(int(value) if type(value) is float else value)
                return _NOTHING
            case nodes.Subexpression(nodes.Field(first), nodes.Field(second)) if (
                f"{first}.{second}" in self.names and current is None
            ):
                return self.names[f"{first}.{second}"]
            case nodes.Comparator(_, left, nodes.Literal(value)):
                paths = sorted(self._paths(left, current), key=str)
                self.compared += [(path, value) for path in paths]
                return _NOTHING
            case nodes.Flatten(left) | nodes.IndexExpression(left, _):
                position = _position(node)
                lists = self._paths(left, current)
                return frozenset((*path, position) for path in lists)
            case nodes.Subexpression(left, right) | nodes.Pipe(left, right):
                return self._paths(right, self._paths(left, current))
            case nodes.Projection(nodes.Flatten() as left, right):
                return self._paths(right, self._paths(left, current))
            case nodes.Projection(left, right):
                inner = frozenset((*path, 0) for path in self._paths(left, current))
                return self._paths(right, inner)
            case nodes.FilterProjection(left, right, condition):
                inner = frozenset((*path, 0) for path in self._paths(left, current))
                self._paths(condition, inner)
                return self._paths(right, inner)
        parts = [self._paths(one, current) for one in nodes.children_of(node)]
        return frozenset().union(*parts)


def _position(node: nodes.Node) -> int:
    """Return the position of the element that a node selects in a list, 0 for many."""
    match node:
        case nodes.IndexExpression(_, nodes.Index(position)):
            return max(position, 0)
    return 0


def query_places(rule: Rule) -> Iterator[tuple[Path, Json]]:
    """Yield (path, value) of the conditions and foreach entries of a rule."""
    validate = rule.validate
    names = names_in(rule)
    yield from _cluster_places(rule)
    yield from places_of_conditions(rule.preconditions, names)
    if validate is None:
        return
    if validate.deny is not None:
        yield from places_of_conditions(validate.deny.conditions, names)
    for each in validate.foreach or ():
        yield from _of_foreach(each, names)


def names_in(rule: Rule) -> dict[str, frozenset[Path]]:
    """Return the paths that the names of a rule stand for."""
    return names_with(rule.context, _ROOTS)


def names_with(
    entries: Iterable[ContextEntry], roots: _Names
) -> dict[str, frozenset[Path]]:
    """Return the paths that roots, and the names of a context, stand for."""
    names = dict(roots)
    for entry in entries:
        if entry.variable is not None and entry.variable.jmes_path:
            names[entry.name] = _Reader(names).query(entry.variable.jmes_path)
        elif entry.variable is None:
            names[entry.name] = _answer_of(entry, _Reader(names))
    return names


def _answer_of(entry: ContextEntry, reader: _Reader) -> frozenset[Path]:
    """Return the paths of what an entry reads in the cluster."""
    root: frozenset[Path] = frozenset([(CLUSTER, entry.name)])
    query = entry.api_call.jmes_path if entry.api_call is not None else ""
    return reader.query(_VARIABLE.sub("x", query), root) if query else root


def _cluster_places(rule: Rule) -> Iterator[tuple[Path, Json]]:
    names = names_in(rule)
    for entry in rule.context:
        if entry.variable is None:
            reader = _Reader(names)
            _answer_of(entry, reader)
            yield from reader.compared
            yield from _with_parents(reader.seen)


def elements_of(
    text: str, names: _Names
) -> tuple[frozenset[Path], list[tuple[Path, Json]]]:
    """Return the paths of the elements of a list, and all paths with values."""
    reader = _Reader(names)
    lists = reader.query(text)
    # A projection already leads to the elements.
    elements = frozenset(path if "[" in text else (*path, 0) for path in lists)
    return elements, [*_with_parents(reader.seen)]


def read_in(value: Json, names: _Names) -> Iterator[tuple[Path, Json]]:
    """Yield the places that the variables in a value read."""
    if type(value) is dict:
        for pair in value.items():
            for part in pair:
                yield from read_in(part, names)
    elif type(value) is list:
        for one in value:
            yield from read_in(one, names)
    for query in _queries(value):
        reader = _Reader(names)
        reader.query(query)
        yield from _with_parents(reader.seen)


def _of_foreach(entry: ForEachValidation, names: _Names) -> Iterator[tuple[Path, Json]]:
    elements, read = elements_of(entry.list, names)
    yield from read
    inner = {**names, "element": elements}
    if entry.preconditions is not None:
        yield from places_of_conditions(entry.preconditions.raw(), inner)
    if entry.deny is not None:
        yield from places_of_conditions(entry.deny.conditions, inner)
    for pattern in filter(None, (entry.pattern, *(entry.any_pattern or ()))):
        for path in sorted(elements, key=str):
            yield path, {}
            for below, value in walked(pattern, ()):
                yield (*path, *below), value


def walked(pattern: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    """Yield the paths and values of a pattern."""
    if type(pattern) is dict:
        for text, value in pattern.items():
            anchor = parse_anchor(text)
            key = anchor[1] if anchor else text
            yield (*path, key), {}
            yield from walked(value, (*path, key))
    elif type(pattern) is list:
        yield path, []
        for value in pattern[:1]:
            yield from walked(value, (*path, 0))
    else:
        yield path, pattern


def places_of_conditions(raw: Json, names: _Names) -> Iterator[tuple[Path, Json]]:
    """Yield (path, value) of conditions."""
    for condition in conditions_in(raw):
        reader = _Reader(names)
        texts = [*_queries(condition.get("key")), *_queries(condition.get("value"))]
        leaves = frozenset().union(*(reader.query(text) for text in texts))
        for path, value in reader.compared:
            yield from _with_parents([path[:-1]])
            yield path, value
        yield from _with_parents(reader.seen)
        values = [*reader.constants]
        for one in (condition.get("key"), condition.get("value")):
            given = one if type(one) is list else [one]
            values += [each for each in given if "{{" not in str(each)]
        for path in sorted(leaves, key=str):
            for value in values:
                yield path, value
                yield path, [value]
                if type(value) is str and value:
                    yield (*path, value), "x"


def _with_parents(paths: Iterable[Path]) -> Iterator[tuple[Path, Json]]:
    for path in paths:
        if path:
            yield from parents(path)


def _queries(raw: Json) -> list[str]:
    if type(raw) is not str:
        return []
    parts = [part.partition("}}") for part in raw.split("{{")[1:]]
    return [query.removeprefix("-") for query, end, _ in parts if end]


def conditions_in(value: Json) -> Iterator[dict[str, Json]]:
    """Yield all conditions of any and all."""
    if type(value) is dict and "key" in value:
        yield value
    elif type(value) is dict:
        for one in value.values():
            yield from conditions_in(one)
    elif type(value) is list:
        for one in value:
            yield from conditions_in(one)
