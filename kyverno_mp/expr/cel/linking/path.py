"""Link selections: ``object.spec.containers``, ``has(a.b)``, ``a.?b``.

Room: expr. Takes: the Linker and a Select. Gives: closures. Next:
expr/cel/linking/expressions.py. PERF: a path
through maps uses only subscripts. If that fails, the slow path starts over; it supports
other values and raises the right error.
Source: cel-go interpreter/attributes.go; docs/behaviour/cel 12c.
"""

from typing import Any, Final

from kyverno_mp.expr.cel.linking.frame import (
    Frame,
    Linker,
    Run,
    constant,
    type_of_selection,
)
from kyverno_mp.expr.cel.nodes import Const, Ident, Node, Select
from kyverno_mp.expr.cel.operators import index
from kyverno_mp.expr.cel.values import (
    NO_VALUE,
    CelFailed,
    Optional,
    Record,
    Uint,
    Value,
    type_name,
)

ABSENT: Final[Any] = object()
"""The result for a missing field in closures of ``link_presence``."""


def link_select(linker: Linker, node: Select) -> Run:
    """Link one selection of any kind."""
    named = None if node.test else type_of_selection(node)
    if named is not None and not linker.slot(_root(node)):
        return constant(named)
    if node.test:
        return _link_has(linker, node)
    if node.optional:
        presence = link_presence(linker, node)

        def optional(s: Frame) -> Optional:
            value = presence(s)
            return NO_VALUE if value is ABSENT else Optional(value)

        return optional
    return _link_path(linker, node)


def _root(node: Node) -> str:
    while type(node) is Select:
        node = node.operand
    return node.name if type(node) is Ident else ""


def _link_path(linker: Linker, node: Select) -> Run:
    names: list[str] = []
    base: Node = node
    while type(base) is Select and not (base.test or base.optional):
        names.append(base.field)
        base = base.operand
    names.reverse()
    linker.cost += len(names)
    if type(base) is Ident and not linker.is_lazy(base.name):
        slot = linker.slot(base.name)
        linker.cost += 1
        if linker.is_record(base.name):
            return _through_record(slot, names)
        return _from_slot(slot, tuple(names))
    run = linker.link(base)
    path = tuple(names)
    return lambda s: walk(run(s), path)


def _through_record(slot: int, names: list[str]) -> Run:
    first, rest = names[0], tuple(names[1:])
    if not rest:
        return lambda s: s[slot].field(first)
    return lambda s: walk(s[slot].field(first), rest)


def _from_slot(slot: int, names: tuple[str, ...]) -> Run:
    """Return the closure of a path of maps that starts at a variable."""
    if len(names) == 1:
        (a,) = names

        def one(s: Frame) -> Value:
            try:
                return s[slot][a]
            except (KeyError, TypeError):
                return walk(s[slot], names)

        return one
    if len(names) == 2:  # noqa: PLR2004 - two names
        a, b = names

        def two(s: Frame) -> Value:
            try:
                return s[slot][a][b]
            except (KeyError, TypeError):
                return walk(s[slot], names)

        return two
    if len(names) == 3:  # noqa: PLR2004 - three names
        a, b, c = names

        def three(s: Frame) -> Value:
            try:
                return s[slot][a][b][c]
            except (KeyError, TypeError):
                return walk(s[slot], names)

        return three
    return lambda s: walk(s[slot], names)


def walk(value: Value, names: tuple[str, ...]) -> Value:
    """Follow a path. Raises: CelFailed if a field is missing."""
    for name in names:
        value = select(value, name)
    return value


def select(value: Value, name: str) -> Value:
    """Evaluate ``value.name``; for an optional, the result is an optional."""
    if value.__class__ is dict:
        member = value.get(name, ABSENT)
        if member is not ABSENT:
            return member
        raise CelFailed(f"no such key: {name}")
    if value.__class__ is Optional:
        member = find(value, name)
        return NO_VALUE if member is ABSENT else Optional(member)
    if isinstance(value, Record):
        return value.field(name)
    return index(value, name)


def find(value: Value, name: str) -> Value:
    """Evaluate ``value.?name``: the field's value, or ABSENT."""
    if value.__class__ is dict:
        return value.get(name, ABSENT)
    if value.__class__ is Optional:
        return find(value.value, name) if value.present else ABSENT
    if isinstance(value, Record):
        return value.field(name) if value.has(name) else ABSENT
    if value.__class__ is list:
        raise CelFailed(f"unsupported index type '{type_name(name)}' in list")
    # KYVERNO: a value without fields does not have the field (docs/behaviour/cel 12c
    # requires an error; the real program raises none).
    return ABSENT


def _link_has(linker: Linker, node: Select) -> Run:
    run, name = linker.link(node.operand), node.field
    operand = node.operand
    if type(operand) is Ident and not linker.is_lazy(operand.name):
        slot = linker.slot(operand.name)

        def has_local(s: Frame) -> bool:
            value = s[slot]
            if value.__class__ is dict:
                return name in value
            return find(value, name) is not ABSENT

        if slot:
            return has_local

    def has(s: Frame) -> bool:
        value = run(s)
        if value.__class__ is dict:
            return name in value
        return find(value, name) is not ABSENT

    return has


def link_presence(linker: Linker, node: Node) -> Run:
    """Link a chain with ``.?`` into a closure that returns a value or ABSENT.

    PERF: no Optional is created between the links of the chain.
    """
    if type(node) is not Select or node.test or not is_chain(node):
        run = linker.link(node)

        def unwrapped(s: Frame) -> Value:
            value = run(s)
            if value.__class__ is Optional:
                return value.value if value.present else ABSENT
            return value

        return unwrapped
    base, names = link_chain(linker, node)

    def presence(s: Frame) -> Value:
        value = base(s)
        for name in names:
            if value.__class__ is dict:
                value = value.get(name, ABSENT)
            elif value is ABSENT:
                return ABSENT
            else:
                value = find(value, name)
        return value

    return presence


def link_chain(linker: Linker, node: Node) -> tuple[Run, tuple[str, ...]]:
    """Split a chain into its linked start and the names of the fields after it."""
    names = []
    while type(node) is Select and is_chain(node):
        names.append(node.field)
        node = node.operand
    linker.cost += len(names)
    names.reverse()
    return linker.link(node), tuple(names)


def is_chain(node: Node) -> bool:
    """Return whether a node is a selection after a ``.?``."""
    while type(node) is Select and not node.test:
        if node.optional:
            return True
        node = node.operand
    return False


def literal_of(node: Node) -> Any:
    """Return the value of a literal; ABSENT for any other node."""
    if type(node) is not Const:
        return ABSENT
    return Uint(node.value) if node.kind == "uint" else node.value
