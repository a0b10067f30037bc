"""docs/cel-fields.md describes the effect of each field of policies in CEL.

A failure means: a field is accepted and ignored without notice, or the page describes a
field that does not exist.
"""

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicy,
    decode_image_policy,
)
from kyverno_mp.policy.cel_kinds.policies import (
    DeletingPolicy,
    GeneratingPolicy,
    MutatingPolicy,
    decode_cel_policy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    ValidatingPolicy,
    decode_validating_policy,
)
from kyverno_mp.policy.crd.cel_kinds import CEL_KINDS
from kyverno_mp.policy.problems import DocumentInvalid

ROOT: Final = Path(__file__).parents[3]
LETTERS: Final = {
    "V": ("ValidatingPolicy", ValidatingPolicy),
    "M": ("MutatingPolicy", MutatingPolicy),
    "G": ("GeneratingPolicy", GeneratingPolicy),
    "D": ("DeletingPolicy", DeletingPolicy),
    "I": ("ImageValidatingPolicy", ImageValidatingPolicy),
    "E": ("PolicyException", CelPolicyException),
}
Json = Any


class Row(NamedTuple):
    """A row of the page."""

    field: str
    kinds: str
    effect: str

    def is_about(self, letter: str, path: str) -> bool:
        if letter not in self.kinds:
            return False
        head = self.field.removesuffix(".*")
        return path == self.field or (
            head != self.field and path.startswith(f"{head}.")
        )


def rows(section: int) -> list[Row]:
    page = (ROOT / "docs/cel-fields.md").read_text().split("\n## ")[section]
    found = re.findall(r"^\| `([^`]+)` \| (\w+) \|(?:(.*)\|)?$", page, re.MULTILINE)
    return [Row(field, kinds, effect.strip()) for field, kinds, effect in found]


def leaves(schema: Json, path: str) -> Iterator[str]:
    inner, suffix = schema.get("properties"), ""
    if schema.get("type") == "array":
        inner, suffix = schema["items"].get("properties"), "[]"
    if not inner:
        yield path
    for name, one in (inner or {}).items():
        yield from leaves(one, f"{path}{suffix}.{name}".removeprefix("."))


def declared() -> set[tuple[str, str]]:
    """Return (letter, path) of each field of the schemas."""
    letters = {kind: letter for letter, (kind, _) in LETTERS.items()}
    return {
        (letters[kind.kind.removeprefix("Namespaced")], path)
        for kind in CEL_KINDS
        for version in kind.versions
        for path in leaves(_spec(version.fields), "")
    }


def _spec(fields: Any) -> Any:
    """Return the schema of ``spec``; large schemas are built on request."""
    return (fields() if callable(fields) else fields)["spec*"]


def test_fields_and_rows_correspond() -> None:
    table = rows(0)
    fields = declared()
    assert len(fields) > 200
    wrong = {
        (letter, path): [row.field for row in table if row.is_about(letter, path)]
        for letter, path in sorted(fields)
    }
    assert {key: found for key, found in wrong.items() if len(found) != 1} == {}
    idle = [
        (row.field, letter)
        for row in table
        for letter in row.kinds
        if not any(one == letter and row.is_about(one, path) for one, path in fields)
    ]
    assert idle == []
    assert [row.field for row in table if not row.effect] == []


def _records(given: Any, seen: dict[Any, None]) -> None:
    if isinstance(given, type) and issubclass(given, msgspec.Struct):
        if given not in seen:
            seen[given] = None
            for hint in typing.get_type_hints(given).values():
                _records(hint, seen)
        return
    for part in typing.get_args(given):
        _records(part, seen)


def _read() -> set[str]:
    """Return the names of all attributes that the program reads, outside its types."""
    found: set[str] = set()
    for file in (ROOT / "kyverno_mp").rglob("*.py"):
        if "policy/cel_kinds" in file.as_posix() or "policy/crd" in file.as_posix():
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_unread_fields_have_no_effect() -> None:
    """Otherwise, a new field would be accepted and ignored."""
    read, table = _read(), rows(0)
    silent = {
        (letter, row.field.removesuffix(".*").rpartition(".")[2].removesuffix("[]"))
        for row in table
        for letter in row.kinds
        if row.effect.startswith("none: ")
    }
    unread = set()
    for letter, (_, document) in LETTERS.items():
        seen: dict[Any, None] = {}
        _records(typing.get_type_hints(document)["spec"], seen)
        for record in seen:
            for name, python in zip(
                record.__struct_encode_fields__, record.__struct_fields__, strict=True
            ):
                if python not in read:
                    unread.add((letter, name))
    # Other unread fields share their names with fields that are read.
    assert unread <= silent
    assert read.isdisjoint({"no_such_field"})
    assert {"failure_policy", "evaluation_mode"} <= read


@pytest.mark.parametrize("letter", LETTERS)
def test_unknown_field_is_rejected(letter: str) -> None:
    """Otherwise, a field of a later version would be accepted and ignored."""
    kind = LETTERS[letter][0]
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": {"evaluation": {"later": True}, "later": True},
    }
    decode: Any = decode_cel_policy
    if letter in "VE":
        decode = decode_validating_policy
    elif letter == "I":
        decode = decode_image_policy
    with pytest.raises(DocumentInvalid, match="later"):
        decode(raw)
