"""Implement list functions: cel-go's extension, version 3, and Kubernetes' own.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, sorted_by. Next:
expr/cel/catalogue.py.
Source: cel-go ext/lists.go; k8s apiserver/pkg/cel/library/lists.go;
docs/behaviour/cel 11.
"""

import math
from itertools import islice, pairwise
from typing import Final

from kyverno_mp.expr.cel import operators
from kyverno_mp.expr.cel.library import Declaration, function, member
from kyverno_mp.expr.cel.operators import (
    charge_texts,
    compare,
    duration_result,
    equal,
)
from kyverno_mp.expr.cel.refusals import no_overload
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    POINTER_BYTES,
    CelFailed,
    Duration,
    Meter,
    Timestamp,
    Uint,
    Value,
)

_COMPARABLE: Final = frozenset(
    {int, Uint, float, bool, str, bytes, Timestamp, Duration}
)
_PAIR_COST: Final = 5
"""The cost of comparing two items for equality."""
_SEARCH_COST: Final = 20
"""The base cost of a search in values of any type."""
_COMPARED_COST: Final = 12
"""The cost of ordering two items."""
_SORTED_COST: Final = 6
_NUMBER_BYTES: Final = 40
_INSERTED_MAX: Final = 12
_SORTED_TYPES: Final = (
    "int",
    "uint",
    "double",
    "bool",
    "duration",
    "timestamp",
    "string",
    "bytes",
)


def _copied(meter: Meter, count: int) -> None:
    meter.charge_bytes(count * POINTER_BYTES)


def _read(meter: Meter, items: list[Value]) -> None:
    """Charge for comparing each item with the next one."""
    meter.charge(_COMPARED_COST * len(items))
    charge_texts(meter, items, 2)


def _slice(meter: Meter, items: list[Value], start: int, end: int) -> list[Value]:
    head = f"cannot slice({start}, {end}), "
    if start < 0 or end < 0:
        raise CelFailed(f"{head}negative indexes not supported")
    if start > end:
        raise CelFailed(f"{head}start index must be less than or equal to end index")
    if len(items) < end:
        raise CelFailed(f"{head}list is length {len(items)}")
    _copied(meter, end - start)
    return items[start:end]


def _flatten(meter: Meter, items: list[Value], level: int = 1) -> list[Value]:
    if level < 0:
        raise CelFailed("level must be non-negative")
    flat = items
    while level > 0:
        meter.charge(2 * len(flat))
        if not any(item.__class__ is list for item in flat):
            return flat
        deeper: list[Value] = []
        for item in flat:
            inner = item if item.__class__ is list else [item]
            _copied(meter, len(inner) + 8)
            deeper.extend(inner)
        flat, level = deeper, level - 1
    return flat


def _distinct(meter: Meter, items: list[Value]) -> list[Value]:
    hashed: set[Value] = set()
    distinct: list[Value] = []
    for item in items:
        meter.charge(6)
        if item.__class__ in (str, bytes):
            meter.charge_text(len(item))
            if item in hashed:
                continue
            meter.hold(ENTRY_BYTES)
            hashed.add(item)
        else:
            meter.charge(_SEARCH_COST + _PAIR_COST * len(distinct))
            if any(equal(meter, item, member) for member in distinct):
                continue
        distinct.append(item)
    return distinct


def _reverse(meter: Meter, items: list[Value]) -> list[Value]:
    _copied(meter, len(items))
    return items[::-1]


def sorted_by(meter: Meter, items: list[Value], keys: list[Value]) -> list[Value]:
    """Sort by keys of one comparable type; the sort is stable."""
    if not items:
        return items
    first = keys[0].__class__
    meter.charge(2 * len(keys))
    if first not in _COMPARABLE:
        raise CelFailed("list elements must be comparable")
    if any(key.__class__ is not first for key in keys):
        raise CelFailed("list elements must have the same type")
    size = len(items)
    depth = size.bit_length()
    meter.charge(size * (depth + _SORTED_COST))
    charge_texts(meter, keys, depth)
    meter.hold(size * 5 * POINTER_BYTES)
    if first is float and size > 1 and any(map(math.isnan, keys)):
        return [items[position] for position in _inserted(keys)]
    # PERF: Python orders these types as CEL does, and sorts them without calls.
    if first is Timestamp or first is Duration:
        keys = [key.ns for key in keys]
    order = sorted(range(size), key=keys.__getitem__)
    return [items[position] for position in order]


def _inserted(keys: list[Value]) -> list[int]:
    """Return the order of an insertion sort, which Go uses for up to 12 items.

    KYVERNO: NaN compares neither as less nor as greater, so the result depends on the
    algorithm.
    """
    if len(keys) > _INSERTED_MAX:
        raise CelFailed("NaN values cannot be ordered")
    order = list(range(len(keys)))
    for end in range(1, len(order)):
        at = end
        while at and keys[order[at]] < keys[order[at - 1]]:
            order[at - 1 : at + 1] = order[at], order[at - 1]
            at -= 1
    return order


def _sort(meter: Meter, items: list[Value]) -> list[Value]:
    return sorted_by(meter, items, items)


def _range(meter: Meter, count: int) -> list[Value]:
    if count > 0:
        meter.charge(count)
        meter.charge_bytes(count * _NUMBER_BYTES)
    return list(range(count))


def _is_sorted(meter: Meter, items: list[Value]) -> bool:
    _read(meter, items)
    _check_ordered(items)
    return all(_order(a, b) != 1 for a, b in pairwise(items))


def _check_ordered(items: list[Value]) -> None:
    if not all(item.__class__ in _COMPARABLE for item in items):
        raise CelFailed("no such overload")


def _order(value: Value, right: Value) -> int:
    """Compare two values. KYVERNO: values without an order count as equal."""
    try:
        return compare(value, right)
    except CelFailed:
        return 0


def _sum(zero: Value) -> Value:
    def run(meter: Meter, items: list[Value]) -> Value:
        meter.charge(6 * len(items))
        total = zero
        for item in items:
            if item.__class__ is not total.__class__:
                raise CelFailed("no such overload")
            if total.__class__ is int:
                total = operators.int_result(total + item)
            elif total.__class__ is Uint:
                total = operators.uint_result(total + item)
            elif total.__class__ is Duration:
                total = duration_result(total.ns + item.ns)
            else:
                total = total + item
        return total

    return run


def _dynamic_sum(meter: Meter, items: list[Value]) -> Value:
    """Sum a list of unknown type; the sum of an empty list is an int."""
    if not items:
        return 0
    zeros: dict[type, Value] = {
        int: 0,
        Uint: Uint(0),
        float: 0.0,
        Duration: Duration(0),
    }
    zero = zeros.get(items[0].__class__)
    if zero is None:
        raise no_overload("sum", items)
    return _sum(zero)(meter, items)


def _extreme(name: str, sign: int) -> Value:
    def run(meter: Meter, items: list[Value]) -> Value:
        _read(meter, items)
        if not items:
            raise CelFailed(f"{name} called on empty list")
        _check_ordered(items)
        best = items[0]
        for item in islice(items, 1, None):
            if _order(item, best) == sign:
                best = item
        return best

    return run


def _index_of(meter: Meter, items: list[Value], value: Value) -> int:
    meter.charge(_PAIR_COST * len(items))
    for position, item in enumerate(items):
        if equal(meter, item, value):
            return position
    return -1


def _last_index_of(meter: Meter, items: list[Value], value: Value) -> int:
    meter.charge(_PAIR_COST * len(items))
    for position in range(len(items) - 1, -1, -1):
        if equal(meter, items[position], value):
            return position
    return -1


def _kubernetes() -> list[Declaration]:
    declared = []
    for kind in _SORTED_TYPES:
        declared.append(member(f"isSorted(list({kind})) -> bool", _is_sorted))
        low, high = _extreme("min", -1), _extreme("max", 1)
        declared.append(member(f"min(list({kind})) -> {kind}", low))
        declared.append(member(f"max(list({kind})) -> {kind}", high))
        declared.append(member(f"sort(list({kind})) -> list({kind})", _sort))
    declared.extend(
        member(f"sum(list({kind})) -> {kind}", _dynamic_sum)
        for kind in ("int", "uint", "double", "duration")
    )
    return declared


OVERLOADS = (
    member("slice(list(T), int, int) -> list(T)", _slice),
    member("flatten(list(list(T))) -> list(T)", _flatten),
    member("flatten(list(dyn), int) -> list(dyn)", _flatten),
    member("distinct(list(T)) -> list(T)", _distinct),
    member("reverse(list(T)) -> list(T)", _reverse),
    function("lists.range(int) -> list(int)", _range),
    member("indexOf(list(T), T) -> int", _index_of),
    member("lastIndexOf(list(T), T) -> int", _last_index_of),
    *_kubernetes(),
)
