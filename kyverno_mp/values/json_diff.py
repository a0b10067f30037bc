"""Describe the way from one JSON value to another as a small RFC 6902 patch.

Room: values. Takes: two values. Gives: operations (add, remove, replace).
Next: program/mutation. May touch: nothing outside its arguments.
Source: RFC 6902, 6901; spec/engine.md 7.7.
"""

from typing import Final

from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json

Operation = dict[str, Json]

_ABSENT: Final[Json] = object()


def diff(before: Json, after: Json) -> list[Operation]:
    """Return operations that turn ``before`` into ``after``.

    Maps are compared key by key; lists without the items that both begin and end with.
    Cost: by what changed; shared parts are recognised by identity.
    """
    operations: list[Operation] = []
    _diff(before, after, "", operations)
    return operations


def pointer_token(key: str) -> str:
    """Escape one key for a JSON pointer."""
    if "~" in key or "/" in key:
        return key.replace("~", "~0").replace("/", "~1")
    return key


# PERF: operations are appended to one list; generators on each level take longer.


def _diff(before: Json, after: Json, path: str, out: list[Operation]) -> None:
    if before is after:
        return
    kind = type(before)
    if kind is dict and type(after) is dict:
        _diff_maps(before, after, path, out)
    elif kind is list and type(after) is list:
        _diff_lists(before, after, path, out)
    elif not same(before, after):
        out.append({"op": "replace", "path": path, "value": after})


def _diff_maps(
    before: dict[str, Json],
    after: dict[str, Json],
    path: str,
    out: list[Operation],
) -> None:
    common = 0
    for key, item in before.items():
        twin = after.get(key, _ABSENT)
        if twin is item:
            common += 1
        elif twin is _ABSENT:
            out.append({"op": "remove", "path": f"{path}/{pointer_token(key)}"})
        else:
            common += 1
            _diff(item, twin, f"{path}/{pointer_token(key)}", out)
    if common == len(after):
        return
    for key, item in after.items():
        if key not in before:
            place = f"{path}/{pointer_token(key)}"
            out.append({"op": "add", "path": place, "value": item})


def _diff_lists(
    before: list[Json], after: list[Json], path: str, out: list[Operation]
) -> None:
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and same(before[start], after[start]):
        start += 1
    end = 0
    while end < shorter - start and same(before[-1 - end], after[-1 - end]):
        end += 1
    common = shorter - start - end
    for index in range(start, start + common):
        _diff(before[index], after[index], f"{path}/{index}", out)
    first = start + common
    out += [
        {"op": "remove", "path": f"{path}/{index}"}
        for index in range(len(before) - end - 1, first - 1, -1)
    ]
    out += [
        {"op": "add", "path": f"{path}/{index}", "value": after[index]}
        for index in range(first, len(after) - end)
    ]
