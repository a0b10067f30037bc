"""Parse the strings of one patchesJson6902 and apply them.

Room: program.mutate. Takes: the text after substitution; an object. Gives: the patched
object. Next: program/mutate/patch.
May touch: nothing outside its arguments; a bounded number of strings is cached.
Source: docs/behaviour/engine 7.4; Kyverno pkg/engine/mutate/patch/patchJSON6902.go.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.jmespath.yaml_text import decode_yaml
from kyverno_mp.limits import (
    PATCH_TEXT_BYTES_MAX,
    PATCH_TEXT_KEPT_BYTES_MAX,
    PATCH_TEXTS_KEPT_MAX,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_additions import Additions, add_all, link_additions
from kyverno_mp.values.patches.json_equal import same, whole_numbers
from kyverno_mp.values.patches.json_patch import (
    Operation,
    apply_patch,
    check_operations,
)
from kyverno_mp.values.patches.json_pointer import tokens_of
from kyverno_mp.values.spending import Spender

_PART_BYTES = 64


class _Read(NamedTuple):
    operations: list[Operation]
    additions: Additions | None


class JsonPatch:
    """Applies the JSON patches to which one patch of a policy resolves."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # PERF: parsing YAML takes longer than all other steps; a patch in a foreach
        # resolves to as many strings as the list has indexes.
        self._known: dict[str, _Read] = {}

    def apply(self, resource: Json, patch: str, spend: Spender) -> Json:
        """Return the patched object; the same object if nothing changes.

        Raises: ExpressionFailed.
        """
        read = self._read(patch, spend)
        if not resource:
            # KYVERNO: the object of a deletion is null; every patch of it fails.
            raise ExpressionFailed("mutate.patch", _text_of_null(read.operations))
        if read.additions is not None:
            added = add_all(resource, (read.additions,), spend)
            if added is not None:
                return added
        patched = apply_patch(resource, read.operations, spend)
        return resource if same(patched, resource) else patched

    def apply_each(
        self, resource: dict[str, Json], patches: Sequence[str], spend: Spender
    ) -> dict[str, Json] | None:
        """Apply the strings in order, in one pass.

        Return None if they must be applied one by one. The object's kind does not
        change.
        """
        additions = []
        if not resource:
            return None
        try:
            for patch in patches:
                read_additions = self._read(patch, spend).additions
                if read_additions is None:
                    return None
                additions.append(read_additions)
            added: dict[str, Json] | None = add_all(resource, additions, spend)
        except InputError:
            return None
        return added

    def _read(self, patch: str, spend: Spender) -> _Read:
        read = self._known.get(patch)
        if read is None:
            operations = operations_of(patch, spend)
            read = _Read(operations, None)
            if len(patch) <= PATCH_TEXT_KEPT_BYTES_MAX:
                read = _Read(operations, link_additions(operations))
                if len(self._known) >= PATCH_TEXTS_KEPT_MAX:
                    self._known.clear()
                self._known[patch] = read
        return read


def operations_of(patch: str, spend: Spender) -> list[Operation]:
    """Return the operations of a patch string. Raises: ExpressionFailed."""
    return check_operations(_decoded(patch, spend), spend)


_NO_OBJECT = "invalid value, expected object"
_SHALLOW = {
    "copy": f"error in copy for from: '{{from}}': {_NO_OBJECT}",
    "move": f"error in move for path: '{{key}}': {_NO_OBJECT}",
    "replace": "replace operation does not apply: doc is missing key: {path}"
    ": missing value",
}
_DEEP = {
    "add": 'add operation does not apply: doc is missing path: "{path}": missing value',
    "copy": 'copy operation does not apply: doc is missing from path: "{from}"'
    ": missing value",
    "move": "move operation does not apply: doc is missing from path: {from}"
    ": missing value",
    "replace": "replace operation does not apply: doc is missing path: {path}"
    ": missing value",
    "test": "test operation does not apply: is missing path: {path}: missing value",
}


def _text_of_null(operations: Sequence[Operation]) -> str:
    """Return the error message for a patch of null."""
    for operation in operations:
        op, path = operation["op"], str(operation["path"])
        pointer = str(operation["from"]) if op in ("copy", "move") else path
        tokens = tokens_of(pointer) or [""]
        facts = {"from": pointer, "path": path, "key": tokens[-1]}
        if len(tokens) == 1:
            otherwise = f"error in {op} for path: '{{path}}': {_NO_OBJECT}"
            return _SHALLOW.get(op, otherwise).format_map(facts)
        if op in _DEEP:
            return _DEEP[op].format_map(facts)
        # The path has no parent, so there is nothing to remove.
    return (
        "json: error calling MarshalJSON for type *jsonpatch.partialDoc: " + _NO_OBJECT
    )


def _decoded(patch: str, spend: Spender) -> Json:
    """Parse a JSON patch: as JSON if it starts with a bracket, otherwise as YAML."""
    if len(patch) > PATCH_TEXT_BYTES_MAX:
        raise ExpressionFailed(
            "mutate.patch",
            f"failed to decode patches: the text is over {PATCH_TEXT_BYTES_MAX} bytes",
        )
    if patch.startswith("["):
        parts = patch.count(",") + patch.count("[") + patch.count("{")
        spend.charge((len(patch) >> 4) + parts)
        spend.charge_bytes(len(patch) + _PART_BYTES * parts)
        try:
            return whole_numbers(msgspec.json.decode(patch))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise ExpressionFailed(
                "mutate.patch", "failed to decode patches: invalid state detected"
            ) from error
    try:
        return whole_numbers(decode_yaml(patch, spend.charge))
    except ExpressionFailed as error:
        raise ExpressionFailed(
            error.code, f"failed to convert patchesJSON6902 to JSON: {error.message}"
        ) from error
