"""Substitute a patch and apply it to an object.

Room: program.mutate. Takes: PatchIR linked once; a scope and an object. Gives: the
patched object. Next: program/mutate/rule, foreach.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.1-7.4; Kyverno pkg/engine/mutate.
"""

from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.template.leaves import Hole, Leaves, filled, link_leaves
from kyverno_mp.expr.template.link import Resolve, link_document
from kyverno_mp.ir.rules import PatchIR
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.mutate.json6902 import JsonPatch
from kyverno_mp.program.mutate.merge_steps import Values
from kyverno_mp.program.mutate.strategic import StrategicPatch, Working
from kyverno_mp.values.gotext import json_text
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

_NOTHING: Final = "no patches applied"


class Patched(NamedTuple):
    """An object after a patch."""

    status: str
    message: str
    left: Working


def failed(message: str) -> Patched:
    """Return an error. KYVERNO: it leaves an empty object behind (engine 7.2)."""
    return Patched(result.ERROR, message, Working({}))


class LinkedPatch:
    """One patch of a rule or of a foreach entry."""

    __slots__ = ("_constant", "_json", "_leaves", "_place", "_resolve", "_strategic")

    def __init__(self, patch: PatchIR) -> None:
        self._place = patch.place
        self._json = JsonPatch()
        self._leaves: Leaves | None = link_leaves(patch.document)
        self._resolve: Resolve | None = None
        self._strategic: StrategicPatch | None = None
        self._constant: StrategicPatch | str = ""
        """A patch without variables, and without a second patch."""
        if self._leaves is None:
            self._resolve = link_document(patch.document)
            return
        found = _at(self._leaves.shape, self._place)
        given, text = found.get("patchStrategicMerge"), found.get("patchesJson6902")
        is_constant = not self._leaves.resolvers
        if given is not None and type(given) is not Hole:
            self._strategic = StrategicPatch(given, has_holes=not is_constant)
            if is_constant and text is None:
                self._constant = self._strategic
        elif given is None and is_constant and type(text) is str:
            self._constant = text

    def apply_plain(self, working: Working, spend: Spender) -> Patched | None:
        """As ``apply``; None when that needs a scope, if only to decode a text."""
        constant = self._constant
        if isinstance(constant, StrategicPatch):
            return _merged(constant, working, (), spend)
        if constant and self._json.knows(constant):
            return self._patched(working, constant, None, spend)
        return None

    def apply(self, scope: RuleContext, working: Working) -> Patched:
        """Return the patched object; the given one stays as it is."""
        try:
            values, strategic, text = self._substituted(scope)
        except InputError as error:
            return failed(f"variable substitution failed: {error.message}")
        if strategic is None and not text:
            return failed("empty mutate rule")
        if strategic is not None:
            return _merged(strategic, working, values, scope.runtime)
        return self._patched(working, text, scope, scope.runtime)

    def _patched(
        self,
        working: Working,
        text: str,
        scope: RuleContext | None,
        spend: Spender,
    ) -> Patched:
        """Apply a JSON patch; without a scope, only a known one."""
        try:
            patched = self._json.apply(working.resource, text, scope, spend)
        except InputError as error:
            return failed(f"failed to patch resource: {error.message}")
        if type(patched) is not dict:
            return failed("failed to unmarshal patched resource: not an object")
        if same(patched, working.resource):
            return Patched(result.SKIP, _NOTHING, working)
        return _changed(Working(patched))

    def _substituted(
        self, scope: RuleContext
    ) -> tuple[Values, StrategicPatch | None, str]:
        """Return the values of the holes and the two patches, one of them empty."""
        values: Values = ()
        leaves = self._leaves
        if leaves is None:
            assert self._resolve is not None
            found = _at(self._resolve(scope), self._place)
        else:
            values = [resolve(scope) for resolve in leaves.resolvers]
            found = _at(leaves.shape, self._place)
        text = found.get("patchesJson6902")
        if type(text) is Hole:
            text = values[text.number]
        if type(text) is not str:
            if text is not None and self._place:
                raise ExpressionFailed(
                    "mutate.patch",
                    "json: cannot unmarshal a value that is no string into Go struct"
                    " field Mutation.mutate.patchesJson6902 of type string",
                )
            text = ""
        if self._strategic is not None:
            return values, self._strategic, text
        given = filled(found.get("patchStrategicMerge"), values)
        if given is None:
            return values, None, text
        return (), StrategicPatch(given, has_holes=False), text


def _merged(
    strategic: StrategicPatch, working: Working, values: Values, spend: Spender
) -> Patched:
    try:
        left = strategic.apply(working, values, spend)
    except InputError as error:
        return failed(f"failed to patch resource: {error.message}")
    if left.resource is working.resource:
        return Patched(result.SKIP, _NOTHING, left)
    return _changed(left)


def _changed(left: Working) -> Patched:
    """Return the patched object; an object without a kind cannot be decoded again."""
    kind = left.resource.get("kind")
    if type(kind) is str and kind:
        return Patched(result.PASS, "", left)
    text = f"Object 'Kind' is missing in '{json_text(left.resource)}'"
    return failed(f"failed to unmarshal patched resource: {text}")


def _at(document: Json, place: tuple[str, ...]) -> dict[str, Json]:
    for key in place:
        document = document[key]
    found: dict[str, Json] = document
    return found
