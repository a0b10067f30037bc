"""Change JSON values at paths.

Room: cli. Takes: a value, a path. Gives: the changed value. Next: inputs.py. May touch:
its arguments.
"""

from copy import deepcopy
from itertools import pairwise
from typing import Final

import msgspec

from kyverno_mp.cli.fix.rewrite.cel_places import Path
from kyverno_mp.values.jsonvalue import Json

ABSENT: Final = object()


def copied(given: Json) -> Json:
    """Return a deep copy."""
    # PERF: ten times faster than deepcopy.
    return msgspec.json.decode(msgspec.json.encode(given))


def with_value(base: Json, path: Path, value: Json) -> Json:
    """Return a copy with a value, or without it if it is ABSENT."""
    changed = copied(base)
    set_at(changed, path, value)
    return changed


def list_at(holder: Json, path: Path) -> Json:
    """Return the list at a path, None if there is none."""
    for key in path:
        holder = holder.get(key) if type(holder) is dict else None
    return holder if type(holder) is list else None


def set_at(holder: Json, path: Path, value: Json) -> None:
    """Set or remove the value at a path; missing containers are created."""
    for key, then in pairwise(path):
        holder = _inner(holder, key, [] if type(then) is int else {})
        if holder is None:
            return
    last = path[-1]
    kept = ABSENT if value is ABSENT else deepcopy(value)
    if type(last) is int and type(holder) is list:
        # A list that is too short gets the value also before its place.
        before = [*holder[:last], *(kept for _ in range(last - len(holder)))]
        holder[:] = [] if kept is ABSENT else [*before, kept, *holder[last + 1 :]]
    elif type(last) is str and type(holder) is dict:
        holder[last] = kept
        if kept is ABSENT:
            del holder[last]


def _inner(holder: Json, key: str | int, empty: Json) -> Json:
    """Return the container at a key, created if needed; None if this is impossible."""
    if type(key) is int:
        if type(holder) is not list:
            return None
        if not holder:
            holder.append(empty)
        if type(holder[0]) is not type(empty):
            holder[0] = empty
        return holder[0]
    if type(holder) is not dict:
        return None
    if type(holder.get(key)) is not type(empty):
        holder[key] = empty
    return holder[key]
