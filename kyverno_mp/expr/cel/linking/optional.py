"""Link optionals: ``container[?key]``, ``orValue``, ``or`` and ``hasValue``.

Room: expr. Takes: the Linker and a Call. Gives: closures. Next:
expr/cel/linking/operator.py, expr/cel/linking/macro.py.
Source: cel-go cel/library.go (optional types); docs/behaviour/cel 12c.
"""

from typing import Any

from kyverno_mp.expr.cel.linking.frame import Frame, Linker, Run
from kyverno_mp.expr.cel.linking.path import (
    ABSENT,
    find,
    is_chain,
    link_chain,
    link_presence,
    literal_of,
)
from kyverno_mp.expr.cel.nodes import Call, ListLit, Node
from kyverno_mp.expr.cel.operators import check_key, has_key, whole_index
from kyverno_mp.expr.cel.refusals import no_overload
from kyverno_mp.expr.cel.values import NO_VALUE, Optional, Value


def found_in(container: Value, key: Value) -> Value:
    """Evaluate ``container[?key]``: the value or ABSENT.

    KYVERNO: a value that is not a container counts as a container without the key, as
    in ``path.find``.
    """
    kind = container.__class__
    if kind is not Optional:
        check_key(key)
    if kind is dict:
        return container[key] if has_key(container, key) else ABSENT
    if kind is list:
        position = whole_index(key)
        return container[position] if 0 <= position < len(container) else ABSENT
    if kind is Optional:
        return found_in(container.value, key) if container.present else ABSENT
    return ABSENT


def link_optional_index(linker: Linker, node: Call) -> Run:
    """Link ``container[?key]``."""
    linker.cost += 12
    container, key = linker.link(node.args[0]), linker.link(node.args[1])

    def run(s: Frame) -> Optional:
        holder = container(s)
        # cel-go does not evaluate the key if the container is absent.
        item = ABSENT if holder is NO_VALUE else found_in(holder, key(s))
        return NO_VALUE if item is ABSENT else Optional(item)

    return run


def link_or_value(linker: Linker, node: Call) -> Run:
    """Link ``target.orValue(default)``."""
    assert node.target is not None
    # KYVERNO: cel-go 0.27 returns a target that is not an optional unchanged.
    literal = _literal_or_list(node.args[0])
    if literal is not ABSENT and is_chain(node.target):
        return _chain_or_literal(linker, node, literal)
    presence = link_presence(linker, node.target)
    default = linker.branch(node.args[0])

    def run(s: Frame) -> Value:
        value = presence(s)
        return default(s) if value is ABSENT else value

    return run


def _literal_or_list(node: Node) -> Any:
    """Return the value of a literal or of a list of literals; ABSENT otherwise."""
    if type(node) is not ListLit:
        return literal_of(node)
    items = [literal_of(item) for item in node.items]
    return ABSENT if node.optional or ABSENT in items else items


def _chain_or_literal(linker: Linker, node: Call, literal: Value) -> Run:
    """Link ``a.?b.?c.orValue(literal)``. PERF: one closure."""
    assert node.target is not None
    base, names = link_chain(linker, node.target)
    _, cost = linker.block(node.args[0])

    def run(s: Frame) -> Value:
        value = base(s)
        for name in names:
            if value.__class__ is dict:
                value = value.get(name, ABSENT)
            elif value is ABSENT:
                break
            else:
                value = find(value, name)
        if value is not ABSENT:
            return value
        if cost:
            meter = s[0]
            meter.left -= cost
            if meter.left < meter.check_below:
                meter.check()
        return literal

    return run


def link_optional(linker: Linker, node: Node) -> Run:
    """Link a target that must be an optional; the closure returns value or ABSENT."""
    if is_chain(node):
        return link_presence(linker, node)
    run = linker.link(node)

    def presence(s: Frame) -> Value:
        value = run(s)
        if value.__class__ is not Optional:
            # KYVERNO: the error names hasValue, which the macro calls first.
            raise no_overload("hasValue", value)
        return value.value if value.present else ABSENT

    return presence


def link_or_optional(linker: Linker, node: Call) -> Run:
    """Link ``target.or(other)``."""
    assert node.target is not None
    linker.cost += 20
    run = linker.link(node.target)
    alternative = linker.branch(node.args[0])

    def either(s: Frame) -> Value:
        value = run(s)
        if value.__class__ is not Optional or value.present:
            # KYVERNO: as with orValue, a target that is not an optional stays
            # unchanged.
            return value
        return alternative(s)

    return either


def link_has_value(linker: Linker, node: Call) -> Run:
    """Link ``target.hasValue()``."""
    assert node.target is not None
    presence = link_optional(linker, node.target)
    return lambda s: presence(s) is not ABSENT
