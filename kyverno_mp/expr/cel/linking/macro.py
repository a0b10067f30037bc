"""Link macros: comprehensions, ``cel.bind``, ``optMap``, ``sortBy``.

Room: expr. Takes: the Linker and a Macro. Gives: closures. Next:
expr/cel/linking/expressions.py. PERF: a short
loop is charged in advance, with a refund on early exit; a loop that must check the
clock is charged per iteration.
Source: the CEL language definition, macros; cel-go's two-variable comprehensions.
"""

from collections.abc import Iterator
from typing import Any, Final

from kyverno_mp.expr.cel.functions.lists import sorted_by
from kyverno_mp.expr.cel.linking.frame import Failed, Frame, Linker, Run
from kyverno_mp.expr.cel.linking.optional import link_optional
from kyverno_mp.expr.cel.linking.path import ABSENT
from kyverno_mp.expr.cel.nodes import Const, Macro
from kyverno_mp.expr.cel.operators import has_key, key_text
from kyverno_mp.expr.cel.refusals import not_iterable
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    FAILURE_COST,
    LIST_BYTES,
    NO_VALUE,
    POINTER_BYTES,
    CelFailed,
    Meter,
    Optional,
    Value,
)

# cel-go's cost of one iteration without the body: the condition and the step of its
# fold.
_TURN: Final = {"all": 3, "exists": 4, "existsOne": 8, "filter": 14, "map": 12}
_TURN_OTHER: Final = 14
_PAIR_BYTES: Final = 96
"""The memory of an (index, item) pair in a list."""
_MADE_BYTES: Final = POINTER_BYTES + 32
"""The memory of a list slot with a number; larger values are charged where they are
created."""
_ENTRY_COST: Final = 8


def link_macro(linker: Linker, node: Macro) -> Run:
    """Link one macro."""
    if node.kind == "bind":
        return _bind(linker, node)
    if node.kind in ("optMap", "optFlatMap"):
        return _optional(linker, node)
    run = linker.link(node.range)
    first = linker.bind(node.names)
    cost = _TURN.get(node.kind, _TURN_OTHER)
    bodies = []
    for body in node.body:
        closure, body_cost = linker.block(body)
        bodies.append(closure)
        cost += body_cost
    linker.unbind(node.names)
    two = len(node.names) > 1
    loop = _Loop(run, first, cost, two=two)
    linked: Run = _KINDS[node.kind](loop, bodies)
    return linked


class _Loop:
    """The range of a comprehension, the slots of its names, and the iteration cost."""

    __slots__ = ("cost", "run", "slot", "two")

    def __init__(self, run: Run, slot: int, cost: int, *, two: bool) -> None:
        self.run = run
        self.slot = slot
        self.cost = cost
        self.two = two

    def items(self, s: Frame) -> Any:
        """Charge for the items and return them, as pairs if the macro has two names."""
        value = self.run(s)
        kind = value.__class__
        if kind is not list and kind is not dict:
            raise not_iterable(value, two=self.two)
        meter = s[0]
        if self.two:
            meter.charge_bytes(len(value) * _PAIR_BYTES)
            items = list(enumerate(value) if kind is list else value.items())
        elif kind is dict:
            meter.charge_bytes(len(value) * POINTER_BYTES)
            items = list(value)
        else:
            items = value
        cost = len(items) * self.cost
        units_left = meter.left - cost
        if units_left >= meter.check_below:
            meter.left = units_left
            return items
        return _metered(meter, items, self.cost)

    def refund(self, s: Frame, items: Any, used: int) -> None:
        """Refund the iterations that an early exit skips."""
        if items.__class__ is list:
            s[0].left += (len(items) - used) * self.cost


def _metered(meter: Meter, items: list[Value], cost: int) -> Iterator[Value]:
    for item in items:
        meter.charge(cost)
        yield item


def _all(loop: _Loop, bodies: list[Run]) -> Run:
    return _quantified(loop, bodies[0], decisive=False)


def _exists(loop: _Loop, bodies: list[Run]) -> Run:
    return _quantified(loop, bodies[0], decisive=True)


def _quantified(loop: _Loop, test: Run, *, decisive: bool) -> Run:
    slot, neutral = loop.slot, not decisive
    get_items, refund = loop.items, loop.refund
    places = slice(slot, slot + 2) if loop.two else slot

    def run(s: Frame) -> bool:
        items = get_items(s)
        if not items:
            return neutral
        # SAFETY: only the text is kept. An error refers to this frame, so keeping the
        # error here would create a reference cycle that keeps the whole review alive.
        failed = None
        for position, item in enumerate(items):
            s[places] = item
            try:
                value = test(s)
            except CelFailed as error:
                s[0].left -= FAILURE_COST
                failed = error.message if failed is None else failed
                continue
            if value is neutral:
                continue
            if value is decisive:
                refund(s, items, position + 1)
                return not neutral
            failed = "no such overload" if failed is None else failed
        if failed is not None:
            raise CelFailed(failed)
        return neutral

    return run


def _true(value: Value) -> bool:
    if value is True:
        return True
    if value is False:
        return False
    raise CelFailed("no such overload")


def _turns(loop: _Loop, s: Frame) -> Iterator[Value]:
    """Store each item in its slots, then yield it."""
    slot = loop.slot
    if loop.two:
        for item in loop.items(s):
            s[slot], s[slot + 1] = item
            yield item
    else:
        for item in loop.items(s):
            s[slot] = item
            yield item


def _exists_one(loop: _Loop, bodies: list[Run]) -> Run:
    (test,) = bodies

    def run(s: Frame) -> bool:
        count = 0
        for _ in _turns(loop, s):
            count += _true(test(s))
        return count == 1

    return run


def _filter(loop: _Loop, bodies: list[Run]) -> Run:
    (test,) = bodies

    def run(s: Frame) -> list[Value]:
        hold = s[0].budget
        hold.bytes_left -= LIST_BYTES
        passed = []
        for item in _turns(loop, s):
            if _true(test(s)):
                hold.bytes_left -= POINTER_BYTES
                passed.append(item)
        return passed

    return run


def _map(loop: _Loop, bodies: list[Run]) -> Run:
    change = bodies[-1]
    test = bodies[0] if len(bodies) > 1 else None

    def run(s: Frame) -> list[Value]:
        hold = s[0].budget
        hold.bytes_left -= LIST_BYTES
        mapped = []
        for _ in _turns(loop, s):
            if test is None or _true(test(s)):
                hold.bytes_left -= _MADE_BYTES
                mapped.append(change(s))
        return mapped

    return run


def _map_of(loop: _Loop, bodies: list[Run]) -> Run:
    change = bodies[-1]
    test = bodies[0] if len(bodies) > 1 else None

    def run(s: Frame) -> dict[Value, Value]:
        hold = s[0].budget
        hold.bytes_left -= LIST_BYTES
        mapped = {}
        for item in _turns(loop, s):
            if test is None or _true(test(s)):
                hold.bytes_left -= ENTRY_BYTES + _MADE_BYTES
                mapped[item[0]] = change(s)
        return mapped

    return run


def _map_of_entries(loop: _Loop, bodies: list[Run]) -> Run:
    change = bodies[-1]
    test = bodies[0] if len(bodies) > 1 else None

    def run(s: Frame) -> dict[Value, Value]:
        merged: dict[Value, Value] = {}
        for _ in _turns(loop, s):
            if test is not None and not _true(test(s)):
                continue
            entry = change(s)
            if entry.__class__ is not dict:
                raise CelFailed("no such overload")
            s[0].charge(len(entry) * _ENTRY_COST)
            s[0].hold(len(entry) * ENTRY_BYTES)
            for key, value in entry.items():
                if has_key(merged, key):
                    raise CelFailed(
                        f"insert failed: key {key_text(key)} already exists"
                    )
                merged[key] = value
        return merged

    return run


def _sort_by(loop: _Loop, bodies: list[Run]) -> Run:
    (key,) = bodies

    def run(s: Frame) -> list[Value]:
        items: list[Value] = []
        keys: list[Value] = []
        hold = s[0].budget
        for item in _turns(loop, s):
            hold.bytes_left -= POINTER_BYTES + _MADE_BYTES
            items.append(item)
            keys.append(key(s))
        return sorted_by(s[0], items, keys)

    return run


_KINDS: Final[dict[str, Any]] = {
    "all": _all,
    "exists": _exists,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map,
    "transformList": _map,
    "transformMap": _map_of,
    "transformMapEntry": _map_of_entries,
    "sortBy": _sort_by,
}


def _bind(linker: Linker, node: Macro) -> Run:
    init = linker.link(node.range)
    slot = linker.bind(node.names, lazy=type(node.range) is not Const)
    body = linker.link(node.body[0])
    linker.unbind(node.names)

    def run(s: Frame) -> Value:
        try:
            s[slot] = init(s)
        except CelFailed as error:
            # cel-go evaluates the value on its first use, so the error waits until
            # then.
            s[slot] = Failed(error.message)
        return body(s)

    return run


def _optional(linker: Linker, node: Macro) -> Run:
    presence = link_optional(linker, node.range)
    slot = linker.bind(node.names)
    body = linker.branch(node.body[0])
    linker.unbind(node.names)
    flat = node.kind == "optFlatMap"

    def run(s: Frame) -> Value:
        value = presence(s)
        if value is ABSENT:
            return NO_VALUE
        s[slot] = value
        result = body(s)
        return result if flat else Optional(result)

    return run
