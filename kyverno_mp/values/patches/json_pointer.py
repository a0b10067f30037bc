"""Resolve JSON pointers, and change a copy of the containers on the path.

Room: values. Takes: pointers, values. Gives: paths through containers.
Next: values/patches/json_patch.
Source: RFC 6901; messages as in evanphx/json-patch v5.9.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import COPIED_PER_STEP, Spender

MISSING: Final = "missing value"
INVALID_INDEX: Final = "invalid index referenced"
ABSENT: Final = object()
_INDEX: Final = re.compile(r"[+-]?[0-9]+\Z")
_LONG: Final = 64
"""PERF: copying a shorter container is covered by the steps of the operation."""
_INT64_DIGITS_MAX: Final = 18


def failed(message: str) -> ExpressionFailed:
    """Return the error for a patch that does not apply."""
    return ExpressionFailed("json_patch.apply", message)


def tokens_of(path: str) -> list[str] | None:
    """Split a pointer; None if it does not point to a value below the document.

    KYVERNO: the text before the first slash is ignored.
    """
    if path.count("/") > JSON_DEPTH_MAX:
        raise failed(f"path has more than {JSON_DEPTH_MAX} parts")
    return path.split("/")[1:] or None


def decoded(token: str) -> str:
    """Return the key that a token denotes."""
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token


def number_of(token: str) -> int | None:
    """Return the index that a token denotes; None if it is not an index."""
    if _INDEX.match(token) and len(token) <= _INT64_DIGITS_MAX:
        return int(token)
    return None


def bad_index(number: int) -> str:
    """Return the error for an index that does not exist in a list."""
    return f"Unable to access invalid index: {number}: {INVALID_INDEX}"


def not_a_number(token: str) -> str:
    """Return the error for a token that is not an index."""
    return f'strconv.Atoi: parsing "{token}": invalid syntax'


def entry_at(container: Json, token: str) -> tuple[Json, str]:
    """Return the entry of a container and "", or ABSENT and the error."""
    if type(container) is dict:
        if token in container:
            return container[token], ""
        return ABSENT, f"unable to get nonexistent key: {token}: {MISSING}"
    number = number_of(token)
    if number is None:
        return ABSENT, not_a_number(token)
    size = len(container)
    if not -size <= number < size:
        return ABSENT, bad_index(number)
    return container[number], ""


Way = tuple[Json, list[tuple[Json, str | int]]]
"""(innermost container, list of the containers above it, each with the key of the
next)"""


def way_to(document: Json, tokens: Sequence[str]) -> Way | None:
    """Return the path to the last token; None if a container on it is missing."""
    above: list[tuple[Json, str | int]] = []
    for token in tokens[:-1]:
        key = decoded(token)
        if type(document) is dict:
            above.append((document, key))
            document = document.get(key)
        elif type(document) is list:
            below, problem = entry_at(document, key)
            if problem:
                return None
            above.append((document, int(key)))
            document = below
        else:
            return None
    is_container = type(document) is dict or type(document) is list
    return (document, above) if is_container else None


def container_of(document: Json, tokens: Sequence[str]) -> Json:
    """Return the map or list that contains the last token; None if it is missing."""
    way = way_to(document, tokens)
    return None if way is None else way[0]


Change = Callable[[Json], Json]


def changed(
    document: Json, tokens: Sequence[str], change: Change, spend: Spender
) -> Json:
    """Change the innermost container of an existing path."""
    way = way_to(document, tokens)
    assert way is not None
    return rebuilt(way, change, spend)


def rebuilt(way: Way, change: Change, spend: Spender) -> Json:
    """Change the innermost container and copy the containers above it."""
    document, above = way
    size = len(document)
    for container, _ in above:
        size += len(container)
    if size > _LONG:
        spend.charge(size // COPIED_PER_STEP)
    document = change(document.copy())
    for container, key in reversed(above):
        copied = container.copy()
        copied[key] = document
        document = copied
    return document
