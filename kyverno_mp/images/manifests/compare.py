"""Compare an object with its signed manifest.

Room: images. Takes: two objects, the ignored fields. Gives: Flat, Differences, also as
text for messages. Next: images/manifests/verifier.py.
Source: docs/behaviour/images 7 (match order, ignore lists).
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.manifests.empty import EmptyValues, Path
from kyverno_mp.limits import (
    MANIFEST_DIFFERENCES_MAX,
    MANIFEST_FIELDS_MAX,
    MANIFEST_NAMES_MAX,
)
from kyverno_mp.values.go.gotext import float_g, json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import has_registry

_REGISTRY: Final = "docker.io/"
_TEMPLATES: Final = ("spec.template.", "spec.jobTemplate.spec.template.")
_TAG: Final = ":latest"
_DEFAULTED: Final = frozenset(
    ("annotations", "labels", "metadata", "resources", "securityContext", "strategy")
)
"""Fields for which the API server adds empty maps."""
_OF_METADATA: Final = frozenset(("annotations", "labels"))
"""Those that it adds to the metadata of an object or a template only."""

_SORTED_AT_ONCE: Final = 4096
_EXACT_MAX: Final = 2**53
_DIGITS_MAX: Final = 40


class Difference(NamedTuple):
    """One field that differs; None = absent."""

    key: str
    before: Json
    after: Json


class Flat:
    """An object's values by path, without those that equal an absent field."""

    def __init__(self, document: Json) -> None:
        """Flatten an object. Raises: ExpressionFailed."""
        self.values: dict[Path, Json] = {}
        self.filled: dict[Path, type] = {}
        """The type, dict or list, of each map and list that has a value."""
        self.empty = empty = EmptyValues(document)
        names = 0
        stack: list[tuple[Path, Json]] = [((), document)]
        while stack:
            path, value = stack.pop()
            children = list(_children(value))
            names += len(children) * (len(path) + 1)
            if len(self.values) + len(stack) + len(children) > MANIFEST_FIELDS_MAX:
                message = f"more than {MANIFEST_FIELDS_MAX} fields"
                raise ExpressionFailed("manifest.fields", message)
            if names > MANIFEST_NAMES_MAX:
                message = f"more than {MANIFEST_NAMES_MAX} names in the paths of fields"
                raise ExpressionFailed("manifest.fields", message)
            present = [
                ((*path, name), child)
                for name, child in children
                if not _is_absent(child) or empty.differ((*path, name), child)
            ]
            stack.extend(present)
            if not present:
                # SAFETY: a map is a value, even if all its fields count as absent.
                self.values[path] = _bare(value)
                self._fill(path)

    def __contains__(self, path: Path) -> bool:
        """Return whether there is a map at a path."""
        kind = self.filled.get(path)
        return kind is dict or (kind is None and type(self.values.get(path)) is dict)

    def _fill(self, path: Path) -> None:
        while path:
            name, path = path[-1], path[:-1]
            if path in self.filled:
                return
            self.filled[path] = list if isinstance(name, int) else dict


def differences(
    signed: Flat | Json,
    current: Flat | Json,
    ignored: Sequence[str],
    most: int = MANIFEST_DIFFERENCES_MAX,
) -> list[Difference]:
    """Return the first differences outside the ignored fields.

    Raises: ExpressionFailed.

    SAFETY: fields are compared by their path instead of its text, and an empty map or
    list is a value, and so is an empty string in a list or in a map whose keys users
    choose. Upstream overlooks such changes and values that move within a list.
    """
    before = signed if isinstance(signed, Flat) else Flat(signed)
    after = current if isinstance(current, Flat) else Flat(current)
    patterns = _Patterns(ignored)
    changes: list[Difference] = []
    for path in _in_order(_changed(before, after)):
        was, now = before.values.get(path), after.values.get(path)
        if _is_default(path, was, now, before, after):
            continue
        key = ".".join(_names(path))
        if _is_canonical(key, was, now) or patterns.match(key):
            continue
        changes.append(_difference(key, was, now))
        if len(changes) >= most:
            break
    return changes


def _changed(before: Flat, after: Flat) -> Iterator[Path]:
    for path, was in before.values.items():
        now = after.values.get(path)
        if was != now or _type(was) is not _type(now):
            yield path
    for path in after.values:
        if path not in before.values:
            yield path


def _in_order(paths: Iterable[Path]) -> Iterator[Path]:
    """Return the paths in order.

    PERF: a call of ``sorted`` with 50,000 paths holds the interpreter's lock for 60 ms.
    """
    parts = []
    rest = iter(paths)
    while part := list(islice(rest, _SORTED_AT_ONCE)):
        parts.append(sorted(part, key=_names))
    return iter(parts[0]) if len(parts) == 1 else heapq.merge(*parts, key=_names)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(map(str, path))


def _type(value: Json) -> type:
    """Return the type; YAML and JSON numbers have one type."""
    return float if type(value) is int else type(value)


def shown(differences: Sequence[Difference]) -> str:
    """Return the differences as a string for messages."""
    items = [
        {
            "key": difference.key,
            "values": {"after": difference.after, "before": difference.before},
        }
        for difference in differences
    ]
    return json_text({"items": items})


class _Patterns:
    """The patterns of ignored fields; ``*`` matches any text."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._firsts = tuple(pattern.partition("*")[0] for pattern in patterns)

    def match(self, key: str) -> bool:
        """Return whether a pattern matches the start of the key.

        SAFETY: the match starts at the root of the object or of its pod template.
        Upstream searches the whole key, so ``status`` also ignores ``data.status``.
        """
        for at in ("", *_TEMPLATES):
            if not key.startswith(at):
                continue
            rest = key[len(at) :]
            # PERF: one call rejects most keys.
            if rest.startswith(self._firsts) and any(
                _begins(rest, pattern) for pattern in self._patterns
            ):
                return True
        return False


def _begins(key: str, pattern: str) -> bool:
    first, *pieces = pattern.split("*")
    if not key.startswith(first):
        return False
    at = len(first)
    for part in pieces:
        at = key.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def _children(value: Json) -> Iterator[tuple[str | int, Json]]:
    if type(value) is dict:
        yield from value.items()
    elif type(value) is list:
        yield from enumerate(value)


def _is_absent(value: Json) -> bool:
    return value is None or value == ""


def _bare(value: Json) -> Json:
    """Return a value that has no children that count."""
    if value is None:
        return ""
    return {} if type(value) is dict else value


def _is_default(path: Path, was: Json, now: Json, before: Flat, after: Flat) -> bool:
    """Return whether an empty map or list is no change.

    It was filled, the API server adds it as a default, or drops it.
    """
    if was is not None and now is not None:
        return False
    empty, opposite = (now, before) if was is None else (was, after)
    if type(empty) is dict and _is_added_to(path, opposite):
        return True
    if now is None and before.empty.is_dropped(path, was) and path[:-1] in after:
        return True
    # The elements that were added or removed are changes themselves.
    return opposite.filled.get(path) is type(empty)


def _is_added_to(path: Path, flat: Flat) -> bool:
    """Return whether the API server adds an empty map there, if ``other`` lacks it.

    SAFETY: an element of a list is a change, even if it consists of such maps only.
    """
    while path and path[-1] in _DEFAULTED:
        name, path = path[-1], path[:-1]
        if name in _OF_METADATA and (not path or path[-1] != "metadata"):
            return False
        if path in flat:
            return True
    return False


def _is_canonical(key: str, was: Json, now: Json) -> bool:
    """Return whether only the default registry or tag was added to an image.

    SAFETY: upstream also accepts a second registry before the first, and such a
    reference names another image.
    """
    if not key.endswith("image") or type(was) is not str or type(now) is not str:
        return False
    if now == _REGISTRY + was:
        return not has_registry(was)
    is_bare = "@" not in was and ":" not in was.rpartition("/")[2]
    return is_bare and now == was + _TAG


def _difference(key: str, was: Json, now: Json) -> Difference:
    was, now = _number(was), _number(now)
    if was is not None and now is not None and _type(was) is not _type(now):
        return Difference(key, _typed(was), _typed(now))
    return Difference(key, was, now)


def _number(value: Json) -> Json:
    """Return a number as Go's float64, unless that changes it."""
    if type(value) is not int:
        return value
    if abs(value) >= 1 << 64:
        # Python limits the digits of a decimal number, but not of a hexadecimal one.
        return f"{value:#x}"[:_DIGITS_MAX]
    return float(value) if abs(value) <= _EXACT_MAX else value


def _typed(value: Json) -> str:
    """Format a value of an unexpected type like Go's verb for strings."""
    if type(value) is str:
        return f"(type: string) {value}"
    if type(value) is bool:
        return f"(type: bool) %!s(bool={str(value).lower()})"
    if type(value) is float:
        return f"(type: float64) %!s(float64={float_g(value)})"
    return json_text(value)
