"""Parse the field paths of kinds: ``Kind:path.of.fields``, ``[]`` for each element.

Room: values. Takes: a comma-separated list. Gives: FieldPath records, or the error
message for an invalid list.
Next: settings/texts.py checks the setting; webhook/recording uses the paths.
"""

from typing import Final, NamedTuple

EACH: Final = "*"
"""Each element of a list, or each value of a map."""
Tokens = tuple[str, ...]


class FieldPath(NamedTuple):
    """The fields at one path in objects of a kind; the path may contain wildcards."""

    kind: str
    tokens: Tokens


def field_paths(paths: str) -> list[FieldPath]:
    """Return the paths of a list that is valid by ``field_paths_problem``.

    Shape: ``"Pod:spec.containers[].env"`` -> ``("Pod", ("spec", "containers", "*",
    "env"))``.
    """
    return [_path(part) for part in _parts(paths)]


def field_paths_problem(paths: str) -> str:
    """Return the error message for an invalid list; "" if the list is valid."""
    for part in _parts(paths):
        path = _path(part)
        if not path.kind or not all(path.tokens):
            return f"expected Kind:path.of.fields instead of {part!r}"
        first, second = (*path.tokens, "")[:2]
        if first in ("apiVersion", "kind", EACH) or (
            first == "metadata" and second != "annotations"
        ):
            return f"{part!r} would remove fields that identify the object"
    return ""


def _parts(paths: str) -> list[str]:
    return [part.strip() for part in paths.split(",") if part.strip()]


def _path(part: str) -> FieldPath:
    kind, _, path = part.partition(":")
    return FieldPath(kind, tuple(path.replace("[]", f".{EACH}").split(".")))
