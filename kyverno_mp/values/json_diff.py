"""Describe the way from one JSON value to another as a small RFC 6902 patch.

Room: values. Takes: two values. Gives: operations (add, remove, replace).
Next: program/mutation. May touch: nothing outside its arguments.
Source: RFC 6902, 6901; spec/engine.md 7.7.
"""

from collections.abc import Iterator

from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json

Operation = dict[str, Json]


def diff(before: Json, after: Json) -> list[Operation]:
    """Return operations that turn ``before`` into ``after``.

    Maps are compared key by key; lists without the items that both begin and end with.
    Cost: by what changed; shared parts are recognised by identity.
    """
    return list(_diff(before, after, ""))


def pointer_token(key: str) -> str:
    """Escape one key for a JSON pointer."""
    if "~" in key or "/" in key:
        return key.replace("~", "~0").replace("/", "~1")
    return key


def _diff(before: Json, after: Json, path: str) -> Iterator[Operation]:
    if before is after:
        return
    kind = type(before)
    if kind is dict and type(after) is dict:
        yield from _diff_maps(before, after, path)
    elif kind is list and type(after) is list:
        yield from _diff_lists(before, after, path)
    elif not same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _diff_maps(
    before: dict[str, Json], after: dict[str, Json], path: str
) -> Iterator[Operation]:
    for key, item in before.items():
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{pointer_token(key)}"}
        elif after[key] is not item:
            yield from _diff(item, after[key], f"{path}/{pointer_token(key)}")
    for key, item in after.items():
        if key not in before:
            yield {"op": "add", "path": f"{path}/{pointer_token(key)}", "value": item}


def _diff_lists(
    before: list[Json], after: list[Json], path: str
) -> Iterator[Operation]:
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and same(before[start], after[start]):
        start += 1
    end = 0
    while end < shorter - start and same(before[-1 - end], after[-1 - end]):
        end += 1
    common = shorter - start - end
    for index in range(start, start + common):
        yield from _diff(before[index], after[index], f"{path}/{index}")
    first = start + common
    for index in range(len(before) - end - 1, first - 1, -1):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index in range(first, len(after) - end):
        yield {"op": "add", "path": f"{path}/{index}", "value": after[index]}
