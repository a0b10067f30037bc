"""Substitute a patch and apply it to an object.

Room: program.mutate. Takes: PatchIR linked once; a scope and an object. Gives: the
patched object. Next: program/mutate/rule, foreach.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: spec/engine.md 7.1-7.4; Kyverno pkg/engine/mutate.
"""

from typing import NamedTuple

import msgspec

from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.jmespath.yaml_text import decode_yaml
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import PatchIR
from kyverno_mp.program import result
from kyverno_mp.program.context import RuleContext
from kyverno_mp.program.mutate.anchors import (
    adds_only,
    clean,
    has_anchors,
    prepare,
    preprocess,
    preprocess_adds,
)
from kyverno_mp.values.json_equal import same, whole_numbers
from kyverno_mp.values.json_patch import Operation, apply_patch, check_operations
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.strategic_merge import merge


class Working(NamedTuple):
    """The object on its way through patches; ``is_tidy``: see strategic_merge."""

    resource: dict[str, Json]
    is_tidy: bool = False


class Patched(NamedTuple):
    """What became of an object."""

    status: str
    message: str
    left: Working


def failed(message: str) -> Patched:
    """Return an error. KYVERNO: it leaves an empty object behind (engine.md 7.2)."""
    return Patched(result.ERROR, message, Working({}))


class _Strategic:
    """A patchStrategicMerge after substitution, as far prepared as it can be."""

    __slots__ = ("_adds_only", "_patch", "is_anchored", "source")

    def __init__(self, source: Json) -> None:
        self.source = source
        prepared = prepare(source)
        self.is_anchored = has_anchors(source)
        self._adds_only = adds_only(prepared)
        self._patch = prepared if self.is_anchored else clean(prepared)

    def apply(self, resource: dict[str, Json], *, is_tidy: bool) -> dict[str, Json]:
        patch = self._patch
        if self._adds_only and self.is_anchored:
            patch = preprocess_adds(patch, resource)
        elif self.is_anchored:
            # KYVERNO: a condition that does not hold empties the patch.
            patch = preprocess(patch, resource) or {}
        return merge(resource, patch, is_tidy=is_tidy)


class LinkedPatch:
    """One patch of a rule or of a foreach entry."""

    __slots__ = ("_known", "_known_text", "_operations", "_place", "_resolve")

    def __init__(self, patch: PatchIR) -> None:
        self._resolve = link_document(patch.document)
        self._place = patch.place
        # PERF: a patch without variables is the same object in every substituted
        # document, so what was made of it the last time still fits.
        self._known: _Strategic | None = None
        self._known_text: str | None = None
        self._operations: list[Operation] = []

    def apply(self, scope: RuleContext, working: Working) -> Patched:
        """Return the patched object; the given one stays as it is."""
        resource, is_tidy = working
        try:
            patches = self._patches(scope)
        except InputError as error:
            return failed(f"variable substitution failed: {error.message}")
        strategic, text = patches.get("patchStrategicMerge"), patches["patchesJson6902"]
        if strategic is None and not text:
            return failed("empty mutate rule")
        try:
            if strategic is not None:
                known = self._known
                if known is None or known.source is not strategic:
                    known = self._known = _Strategic(strategic)
                patched = known.apply(resource, is_tidy=is_tidy)
            else:
                operations = self._decoded(text, scope)
                patched = apply_patch(resource, operations)
                if type(patched) is not dict:
                    return failed("failed to unmarshal patched resource: not an object")
        except InputError as error:
            return failed(f"failed to patch resource: {error.message}")
        if patched is resource or same(patched, resource):
            return Patched(result.SKIP, "no patches applied", working)
        return Patched(result.PASS, "", Working(patched, strategic is not None))

    def _patches(self, scope: RuleContext) -> dict[str, Json]:
        found: Json = self._resolve(scope)
        for key in self._place:
            found = found[key]
        text = found.get("patchesJson6902")
        if type(text) is not str:
            if text is not None and self._place:
                raise ExpressionFailed(
                    "mutate.patch",
                    "json: cannot unmarshal a value that is no string into Go struct"
                    " field Mutation.mutate.patchesJson6902 of type string",
                )
            text = ""
        return {
            "patchStrategicMerge": found.get("patchStrategicMerge"),
            "patchesJson6902": text,
        }

    def _decoded(self, text: str, scope: RuleContext) -> list[Operation]:
        if text != self._known_text:
            self._operations = check_operations(_read(text, scope))
            self._known_text = text
        return self._operations


def _read(text: str, scope: RuleContext) -> Json:
    """Read a JSON patch: JSON when it begins with a bracket, else YAML."""
    if text.startswith("["):
        try:
            return whole_numbers(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise ExpressionFailed(
                "mutate.patch", "failed to decode patches: invalid state detected"
            ) from error
    try:
        return whole_numbers(decode_yaml(text, scope.runtime.charge))
    except ExpressionFailed as error:
        raise ExpressionFailed(
            error.code, f"failed to convert patchesJSON6902 to JSON: {error.message}"
        ) from error
