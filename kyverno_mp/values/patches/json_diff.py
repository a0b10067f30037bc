"""Compute a small RFC 6902 patch that turns one JSON value into another.

Room: values. Takes: two values. Gives: operations (add, remove, replace).
Next: program/mutation.
Source: RFC 6902, 6901; docs/behaviour/engine 7.7.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same_paid
from kyverno_mp.values.spending import FREE, Spender

Operation = dict[str, Json]

_ABSENT: Final[Json] = object()
_HOLDERS: Final = frozenset({dict, list})
_SHORT: Final = 32
"""PERF: comparing up to this many entries is covered by the steps already charged to
the policies."""
_FEW: Final = 8
_MADE_STEPS: Final = 4
_STEPS_AT_ONCE: Final = 64
_OPERATION_BYTES: Final = 40
_ITEM_BYTES: Final = 6
"""The bytes of a number, or of a string's quotes and comma."""


def diff(before: Json, after: Json, spend: Spender = FREE) -> list[Operation]:
    """Return operations that turn ``before`` into ``after``.

    Maps are compared key by key, lists without their common first and last items.
    Cost: proportional to the changes; shared parts are recognised by identity.
    ``spend``: charged with the comparison and with the bytes of the patch as JSON,
    which contains a shared part once per occurrence. Raises: BudgetExceeded.
    """
    operations: list[Operation] = []
    if before is not after:
        _diff(before, after, "", operations, spend)
    if spend is not FREE:
        _charge_answer(operations, spend)
    return operations


def _charge_answer(operations: list[Operation], spend: Spender) -> None:
    """Charge the bytes of a patch as JSON."""
    size = steps = 0
    waiting: list[Json] = []
    for operation in operations:
        size += _OPERATION_BYTES + len(operation["path"])
        value: Json = operation.get("value")
        if type(value) is str:
            size += len(value)
        elif type(value) is dict and len(value) <= _FEW:
            # PERF: most values are short maps.
            steps += 1 + len(value)
            size += _ITEM_BYTES * len(value)
            for key, item in value.items():
                size += len(key)
                if type(item) is str:
                    size += len(item)
                elif type(item) in _HOLDERS:
                    waiting.append(item)
        elif type(value) in _HOLDERS:
            waiting.append(value)
    _charge_parts(waiting, size, steps, spend)


def _charge_parts(waiting: list[Json], size: int, steps: int, spend: Spender) -> None:
    """Charge the bytes of maps and lists, and the bytes and steps counted before."""
    while waiting:
        holder = waiting.pop()
        steps += 1 + len(holder)
        size += _ITEM_BYTES * len(holder)
        items = holder
        if type(holder) is dict:
            size += sum(map(len, holder))
            items = holder.values()
        if steps > _STEPS_AT_ONCE:
            spend.charge(steps)
            spend.charge_bytes(size)
            size = steps = 0
        for item in items:
            if type(item) is str:
                size += len(item)
            elif type(item) in _HOLDERS:
                waiting.append(item)
    spend.charge(steps)
    spend.charge_bytes(size)


def pointer_token(key: str) -> str:
    """Escape one key for a JSON pointer."""
    if "~" in key or "/" in key:
        return key.replace("~", "~0").replace("/", "~1")
    return key


# PERF: operations are appended to one list; a generator per level is slower.


def _diff(
    before: Json, after: Json, path: str, out: list[Operation], spend: Spender
) -> None:
    """Append the operations for two values that are not the same object."""
    kind = type(before)
    if kind is dict and type(after) is dict:
        _diff_maps(before, after, path, out, spend)
    elif kind is list and type(after) is list:
        _diff_lists(before, after, path, out, spend)
    elif not same_paid(before, after, spend):
        out.append({"op": "replace", "path": path, "value": after})


def _diff_maps(
    before: dict[str, Json],
    after: dict[str, Json],
    path: str,
    out: list[Operation],
    spend: Spender,
) -> None:
    if len(before) + len(after) > _SHORT:
        spend.charge((len(before) + len(after)) // 2)
    common = 0
    for key, item in before.items():
        twin = after.get(key, _ABSENT)
        if twin is item:
            common += 1
            continue
        token = pointer_token(key) if "~" in key or "/" in key else key
        if twin is _ABSENT:
            out.append({"op": "remove", "path": f"{path}/{token}"})
        else:
            common += 1
            _diff(item, twin, f"{path}/{token}", out, spend)
    if common == len(after):
        return
    for key, item in after.items():
        if key not in before:
            token = pointer_token(key) if "~" in key or "/" in key else key
            out.append({"op": "add", "path": f"{path}/{token}", "value": item})


def _diff_lists(
    before: list[Json],
    after: list[Json],
    path: str,
    out: list[Operation],
    spend: Spender,
) -> None:
    size, new_size = len(before), len(after)
    shorter = min(new_size, size)
    spend.charge(1 + (size + new_size) // 2)
    start = 0
    # PERF: most items are identical objects.
    while start < shorter and (
        before[start] is after[start] or same_paid(before[start], after[start], spend)
    ):
        start += 1
    end = 0
    most = shorter - start
    while end < most and (
        before[size - 1 - end] is after[new_size - 1 - end]
        or same_paid(before[size - 1 - end], after[new_size - 1 - end], spend)
    ):
        end += 1
    common = shorter - start - end
    # Each of these items creates a separate operation or path.
    count = size + new_size - 2 * end - 2 * start - common
    if count > _SHORT:
        spend.charge(_MADE_STEPS * count)
        spend.charge_bytes((_OPERATION_BYTES + len(path)) * count)
    for index in range(start, start + common):
        if before[index] is not after[index]:
            _diff(before[index], after[index], f"{path}/{index}", out, spend)
    first = start + common
    out += [
        {"op": "remove", "path": f"{path}/{index}"}
        for index in range(size - end - 1, first - 1, -1)
    ]
    out += [
        {"op": "add", "path": f"{path}/{index}", "value": after[index]}
        for index in range(first, new_size - end)
    ]
