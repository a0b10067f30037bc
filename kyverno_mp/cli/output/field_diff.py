"""Describe the differences between two objects field by field.

Room: cli. Takes: the expected and the actual object. Gives: lines. Next:
cli/apply/mutated.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

_TEXT_LENGTH_MAX: Final = 200
"""Longer values are truncated; the full value is in the file."""


def field_differences(expected: Json, actual: Json, path: str = "") -> Iterator[str]:
    """Yield ``spec.x: expected 1, got 2`` for each field that differs, in key order."""
    if type(expected) is dict and type(actual) is dict:
        for key in sorted({*expected, *actual}):
            subpath = f"{path}.{key}" if path else key
            if key not in actual:
                yield f"{subpath}: expected {_text(expected[key])}, got nothing"
            elif key not in expected:
                yield f"{subpath}: expected nothing, got {_text(actual[key])}"
            else:
                yield from field_differences(expected[key], actual[key], subpath)
    elif type(expected) is list and type(actual) is list:
        for index in range(max(len(expected), len(actual))):
            subpath = f"{path}[{index}]"
            if index >= len(actual):
                yield f"{subpath}: expected {_text(expected[index])}, got nothing"
            elif index >= len(expected):
                yield f"{subpath}: expected nothing, got {_text(actual[index])}"
            else:
                yield from field_differences(expected[index], actual[index], subpath)
    elif expected != actual or (type(expected) is bool) != (type(actual) is bool):
        yield f"{path}: expected {_text(expected)}, got {_text(actual)}"


def _text(value: Json) -> str:
    rendered = json_text(value)
    if len(rendered) <= _TEXT_LENGTH_MAX:
        return rendered
    return rendered[:_TEXT_LENGTH_MAX] + " ..."
