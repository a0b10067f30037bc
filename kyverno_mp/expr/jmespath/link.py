"""Compile nodes to closures, deciding as much as possible at link time.

Room: expr. Takes: nodes.Node. Gives: Query, ``query(runtime, input) -> Json``.
Next: template, conditions, program/context/rule_context, assertion.
Source: docs/behaviour/engine 3.5 (missing keys), 9.1.

A missing key is represented by a ``Missing`` value, not by an exception. Each node is
linked either *strict* (may return Missing) or *lenient* (returns null instead); the
parent chooses. At the top level Missing becomes UnknownKey.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath import closures as build
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.interim import (
    Closure,
    Missing,
    Reference,
    UnknownKey,
    fail,
    floats,
    leave,
)
from kyverno_mp.expr.jmespath.nodes import Node, children_of, nodes_of
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json

Query: TypeAlias = Callable[[Runtime, Json], Json]

_GO_VALUED: Final = frozenset({"compare", "items"})
"""Functions whose results are not plain JSON while the query runs."""
_NODES_PER_STEP: Final = 4
_REPEATED_PER_STEP: Final = 8
_FREE_STEPS: Final = 8
_GROWTH_MAX: Final = 10_000
"""Above this number of leaves, with shared parts counted repeatedly, a result is
walked."""


def link_raw(node: Node) -> Query:
    """Link a query whose result goes back into the JSON context.

    Unlike ``link``, this keeps ints as ints: the context treats them as floats if
    ``runtime.ints_are_numbers`` is set. PERF: whole objects are not walked.
    """
    strict = _weighed(node, link_strict(node))
    leaves = needs_leaving(node)

    def query(runtime: Runtime, value: Json) -> Json:
        try:
            result = strict(runtime, value)
            if type(result) is Missing:
                raise UnknownKey(result.key)
            return leave(runtime, result) if leaves else result
        except (RecursionError, OverflowError, MemoryError) as error:
            raise too_much(error) from error

    return query


def link(node: Node) -> Query:
    """Link a query in Kyverno's dialect.

    The query raises UnknownKey for a missing key that no operator absorbs, otherwise
    ExpressionFailed with the Go program's text, BudgetExceeded or DeadlinePassed. With
    ``runtime.ints_are_numbers``, ints in the result become floats. The query never
    changes its input, but the result may share parts with the input: treat both as
    read-only.
    """
    strict = _weighed(node, link_strict(node))
    leaves = needs_leaving(node)

    def query(runtime: Runtime, value: Json) -> Json:
        try:
            result = strict(runtime, value)
            kind = type(result)
            if kind is str or result is None:
                return result
            if kind is Missing:
                raise UnknownKey(result.key)
            if leaves:
                result = leave(runtime, result)
            if runtime.ints_are_numbers:
                return floats(runtime, result)
        except (RecursionError, OverflowError, MemoryError) as error:
            raise too_much(error) from error
        return result

    return query


def _weighed(node: Node, closure: Closure) -> Closure:
    """Charge for the nodes whose closures charge nothing, unless there are few of them.

    PERF: a query of a few names and operators is not worth a charge.
    """
    steps = nodes_of(node) // _NODES_PER_STEP
    if steps <= _FREE_STEPS:
        return closure

    def weighed(runtime: Runtime, current: Json) -> Json:
        runtime.charge(steps)
        return closure(runtime, current)

    return weighed


def _repeated(node: Node) -> Closure:
    """Link the part that a projection repeats per item, and charge for its nodes."""
    closure = link_lenient(node)
    steps = nodes_of(node) // _REPEATED_PER_STEP
    if not steps:
        return closure

    def repeated(runtime: Runtime, current: Json) -> Json:
        runtime.charge(steps)
        return closure(runtime, current)

    return repeated


def too_much(error: Exception) -> ExpressionFailed:
    """Convert an exhausted stack, number range or memory to an input error."""
    return ExpressionFailed("expr.too_much", f"expression failed: {error}")


def needs_leaving(node: Node) -> bool:
    """Return whether a result must be walked before the query returns it.

    The result may contain values that exist only in queries. Or multi-selects may have
    built a small graph that expands to an enormous tree, which the walk charges to the
    budget.
    """
    growth = 1
    pending = [node]
    while pending:
        item = pending.pop()
        match item:
            case nodes.MultiSelectList(children) | nodes.MultiSelectHash(children):
                growth *= max(len(children), 1)
                if growth > _GROWTH_MAX:
                    return True
                pending.extend(children_of(item))
            case nodes.Function(name) if name in _GO_VALUED:
                return True
            case nodes.ExpressionReference():
                return True
            case _:
                pending.extend(children_of(item))
    return False


def link_strict(node: Node) -> Closure:
    """Link a node so that a missing key returns Missing."""
    match node:
        case nodes.Field() | nodes.Subexpression() | nodes.IndexExpression():
            return _link_path(node, lenient=False)
        case nodes.And(left, right):
            return build.conjunction(link_lenient(left), link_strict(right))
    return link_lenient(node)


def link_lenient(node: Node) -> Closure:
    """Link a node so that a missing key returns null."""
    lenient = link_lenient
    match node:
        case nodes.Field() | nodes.Subexpression() | nodes.IndexExpression():
            return _link_path(node, lenient=True)
        case nodes.Literal(value):
            return build.constant(value)
        case nodes.Identity() | nodes.Current():
            return build.current
        case nodes.Comparator(operator, left, right):
            return build.comparison(operator, lenient(left), lenient(right), right)
        case nodes.And(left, right):
            return build.conjunction(lenient(left), lenient(right))
        case nodes.Or(left, right):
            return build.disjunction(lenient(left), lenient(right))
        case nodes.Not(child):
            return build.negation(lenient(child))
        case nodes.Pipe(left, right):
            return build.pipe(lenient(left), lenient(right))
        case nodes.Function(name, arguments):
            return _call(name, tuple(map(lenient, arguments)))
        case nodes.ExpressionReference(child):
            return build.constant(Reference(_repeated(child)))
    return _link_collecting(node)


def _call(name: str | None, arguments: tuple[Closure, ...]) -> Closure:
    # PERF: imported late for a fast start of the CLI; most queries call no function.
    from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, link_call

    return link_call(KYVERNO, name, arguments)


def _link_collecting(node: Node) -> Closure:
    lenient = link_lenient
    match node:
        case nodes.Index(position):
            return build.index(position)
        case nodes.Slice():
            return build.cut_slice(node)
        case nodes.Flatten(left):
            return build.flattening(lenient(left))
        case nodes.Projection(nodes.Flatten(left), right):
            return build.flat_projection(lenient(left), _repeated(right))
        case nodes.Projection(left, right):
            return build.projection(lenient(left), _repeated(right))
        case nodes.FilterProjection(left, right, condition):
            return build.selection(
                lenient(left), _repeated(right), _repeated(condition)
            )
        case nodes.ValueProjection(left, right):
            source = lenient(left)
            return build.value_projection(source, _repeated(right), nulls_first=True)
        case nodes.MultiSelectList(children):
            names = [child.name for child in children if type(child) is nodes.Field]
            if len(names) == len(children):
                return build.multi_fields(names)
            return build.multi_list(tuple(map(lenient, children)))
        case nodes.MultiSelectHash(pairs):
            return build.multi_hash(tuple((k, lenient(child)) for k, child in pairs))
    return _unknown_node


def _unknown_node(_runtime: Runtime, _current: Json) -> Json:
    raise fail("Unknown AST node: ASTEmpty")


def spine(node: Node) -> list[Node]:
    """Convert a chain ``a.b[0].c`` to its steps from left to right."""
    steps: list[Node] = []
    while isinstance(node, (nodes.Subexpression, nodes.IndexExpression)):
        steps.append(node.right)
        node = node.left
    steps.append(node)
    steps.reverse()
    flat: list[Node] = []
    for step in steps:
        nested = isinstance(step, (nodes.Subexpression, nodes.IndexExpression))
        flat.extend(spine(step) if nested else (step,))
    return flat


def field_names(node: Node) -> list[str] | None:
    """Return the names in a chain of plain names; None for any other node."""
    steps = spine(node)
    names = [step.name for step in steps if type(step) is nodes.Field]
    return names if len(names) == len(steps) else None


def _link_path(node: Node, *, lenient: bool) -> Closure:
    """Link a chain; runs of plain names become one loop."""
    steps = spine(node)
    linked: list[Closure] = []
    names: list[str] = []
    for step in steps:
        if type(step) is nodes.Field:
            names.append(step.name)
            continue
        if names:
            linked.append(build.names_or_missing(names))
            names = []
        linked.append(link_strict(step))
    if names:
        walk = build.names_or_null if lenient else build.names_or_missing
        linked.append(walk(names))
    elif lenient:
        linked[-1] = link_lenient(steps[-1])
    if len(linked) == 1:
        return linked[0]
    if len(linked) == 2:  # noqa: PLR2004 - the common case, without a loop
        return build.two_steps(linked[0], linked[1], lenient=lenient)
    rest = tuple(linked)

    def follow(runtime: Runtime, current: Json) -> Json:
        for closure in rest:
            current = closure(runtime, current)
            if type(current) is Missing:
                return None if lenient else current
        return current

    return follow
