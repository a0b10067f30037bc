"""Compare an object with its signed manifest.

Room: images. Takes: two objects, the ignored fields. Gives: Differences, also as text
for messages. Next: images/manifests/verifier.py. May touch: nothing outside its
arguments.
Source: docs/behaviour/images 7 (match order, ignore lists).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import MANIFEST_FIELDS_MAX
from kyverno_mp.values.go.gotext import float_g, json_text
from kyverno_mp.values.jsonvalue import Json

_REGISTRY: Final = "docker.io/"
_TEMPLATES: Final = ("spec.template.", "spec.jobTemplate.spec.template.")
_TAG: Final = ":latest"
_DEFAULTED: Final = frozenset(
    ("annotations", "labels", "metadata", "resources", "securityContext", "strategy")
)
"""Fields for which the API server adds empty maps."""

_Path = tuple[str, ...]


class Difference(NamedTuple):
    """One field that differs; None = absent."""

    key: str
    before: Json
    after: Json


def differences(signed: Json, given: Json, ignored: Sequence[str]) -> list[Difference]:
    """Return the differences outside the ignored fields. Raises: ExpressionFailed.

    SAFETY: fields are compared by their path instead of its text, and an empty map or
    list is a value. Upstream overlooks such changes and values that move within a list.
    """
    before, after = _fields(signed), _fields(given)
    found = []
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was == now and type(was) is type(now):
            continue
        if _is_default(path, was, now, before, after):
            continue
        key = ".".join(path)
        if _is_canonical(key, was, now) or is_ignored(key, ignored):
            continue
        found.append(_difference(key, was, now))
    return found


def shown(found: Sequence[Difference]) -> str:
    """Return the differences as a string for messages."""
    items = [
        {"key": one.key, "values": {"after": one.after, "before": one.before}}
        for one in found
    ]
    return json_text({"items": items})


def is_ignored(key: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches the start of the key; ``*`` matches any text.

    SAFETY: the match starts at the root of the object or of its pod template. Upstream
    searches the whole key, so ``status`` also ignores ``data.status``.
    """
    keys = [key, *(key[len(at) :] for at in _TEMPLATES if key.startswith(at))]
    return any(_begins(one, pattern) for pattern in patterns for one in keys)


def _begins(key: str, pattern: str) -> bool:
    first, *others = pattern.split("*")
    if not key.startswith(first):
        return False
    at = len(first)
    for part in others:
        at = key.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def _fields(document: Json) -> dict[_Path, Json]:
    """Return all values by path, without nulls and empty strings."""
    fields: dict[_Path, Json] = {}
    stack: list[tuple[_Path, Json]] = [((), document)]
    while stack:
        path, value = stack.pop()
        children = list(_children(value))
        if children:
            stack.extend(((*path, name), child) for name, child in children)
        elif value is not None and value != "":
            # YAML and JSON numbers have one type.
            fields[path] = float(value) if type(value) is int else value
        if len(fields) + len(stack) > MANIFEST_FIELDS_MAX:
            raise ExpressionFailed(
                "manifest.fields", f"more than {MANIFEST_FIELDS_MAX} fields"
            )
    return fields


def _children(value: Json) -> Iterator[tuple[str, Json]]:
    if type(value) is dict:
        yield from value.items()
    elif type(value) is list:
        yield from ((str(index), child) for index, child in enumerate(value))


def _is_default(
    path: _Path,
    was: Json,
    now: Json,
    before: Mapping[_Path, Json],
    after: Mapping[_Path, Json],
) -> bool:
    """Return whether an empty map is no change: it was filled or added as a default."""
    if was is not None and now is not None:
        return False
    empty, other = (now, before) if was is None else (was, after)
    if type(empty) not in (dict, list):
        return False
    if path and path[-1] in _DEFAULTED:
        return True
    size = len(path)
    return any(each[:size] == path for each in other)


def _is_canonical(key: str, was: Json, now: Json) -> bool:
    """Return whether only the default registry or tag was added to an image."""
    if not key.endswith("image") or type(was) is not str or type(now) is not str:
        return False
    return now in (_REGISTRY + was, was + _TAG)


def _difference(key: str, was: Json, now: Json) -> Difference:
    if was is not None and now is not None and type(was) is not type(now):
        return Difference(key, _typed(was), _typed(now))
    return Difference(key, was, now)


def _typed(value: Json) -> str:
    """Format a value of an unexpected type like Go's verb for strings."""
    if type(value) is str:
        return f"(type: string) {value}"
    if type(value) is bool:
        return f"(type: bool) %!s(bool={str(value).lower()})"
    if type(value) is float:
        return f"(type: float64) %!s(float64={float_g(value)})"
    return json_text(value)
