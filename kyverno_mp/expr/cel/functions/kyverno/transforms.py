"""Implement maps from pairs of lists.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/transform; docs/behaviour/cel 12.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.expr.cel.library import Declaration, function
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    LIST_BYTES,
    CelFailed,
    Meter,
    Value,
    type_name,
)

_COST: Final = 30
_PAIR_COST: Final = 12


def _map_of(
    meter: Meter, keys: list[Value], values: list[Value], key: str, value: str
) -> dict[str, Value]:
    """Return a map with keys from the first list and values from the second."""
    if len(keys) != len(values):
        raise CelFailed(
            "listObjToMap must take lists of equal length."
            f" list1: {len(keys)}, list2: {len(values)}"
        )
    meter.charge(_PAIR_COST * len(keys))
    meter.charge_bytes(LIST_BYTES + ENTRY_BYTES * len(keys))
    mapping: dict[str, Value] = {}
    for key_holder, value_holder in zip(keys, values, strict=True):
        if key_holder.__class__ is not dict:
            # Upstream panics here.
            raise CelFailed(f"failed to convert {type_name(key_holder)} to a map")
        name = key_holder.get(key)
        if name.__class__ is not str:
            raise CelFailed(
                "the passed key name cannot be handled as a string in the key object"
                " list"
            )
        if value_holder.__class__ is not dict:
            raise CelFailed(
                "object cannot be handled as a map string to any in the value object"
                " list"
            )
        mapping[name] = value_holder.get(value)
    return mapping


def _declared() -> Iterator[Declaration]:
    for prefix in ("", "transform."):
        signature = (
            f"{prefix}listObjToMap(list(dyn), list(dyn), string, string)"
            " -> map(dyn, dyn)"
        )
        yield function(signature, _map_of, cost=_COST)


OVERLOADS: Final = tuple(_declared())
