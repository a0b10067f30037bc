"""Substitute a patch and apply it to an object.

Room: program.mutate. Takes: PatchIR linked once; a scope and an object. Gives: the
patched object. Next: program/mutate/rule, foreach.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.1-7.4; Kyverno pkg/engine/mutate.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.template.leaves import Hole, Leaves, filled, link_leaves
from kyverno_mp.expr.template.link import Resolve, link_document
from kyverno_mp.ir.rules import PatchIR
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.mutate.json6902 import JsonPatch
from kyverno_mp.program.mutate.merge_steps import Values
from kyverno_mp.program.mutate.row import OBJECT, Frame, Row, link_row
from kyverno_mp.program.mutate.strategic import StrategicPatch
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same
from kyverno_mp.values.spending import Spender

NOTHING: Final = "no patches applied"


class Patched(NamedTuple):
    """An object after a patch, with the patch's status and message."""

    status: str
    message: str
    resource: dict[str, Json]


def applied(changed: dict[str, Json], resource: dict[str, Json]) -> Patched:
    """Return the result of a patch that was applied."""
    if changed is resource:
        return Patched(result.SKIP, NOTHING, resource)
    return Patched(result.PASS, "", changed)


def failed(message: str) -> Patched:
    """Return an error. KYVERNO: the resulting object is empty (engine 7.2)."""
    return Patched(result.ERROR, message, {})


class LinkedPatch:
    """One patch of a rule or of a foreach entry."""

    __slots__ = (
        "_is_merge",
        "_json",
        "_place",
        "_resolve",
        "_strategic",
        "given",
        "leaves",
        "row",
        "text",
    )

    def __init__(self, patch: PatchIR) -> None:
        self._place = patch.place
        self._json = JsonPatch()
        self.leaves: Leaves | None = link_leaves(patch.document)
        """The parts that depend on the request; None if even the patch's shape does."""
        self._resolve: Resolve | None = None
        self._strategic: StrategicPatch | None = None
        self.given: Json = None
        """The strategic merge patch, with Holes."""
        self.text: Json = None
        """The string of the JSON patch, or its Hole."""
        self._is_merge = False
        """Whether the patch is only a strategic merge of a known shape."""
        self.row: Row | None = None
        """Function that computes the values of the holes, if they need no scope."""
        if self.leaves is None:
            self._resolve = link_document(patch.document)
            return
        patches = _at(self.leaves.shape, self._place)
        self.given = patches.get("patchStrategicMerge")
        self.text = patches.get("patchesJson6902") or None
        if self.given is not None and type(self.given) is not Hole:
            has_holes = bool(self.leaves.resolvers)
            self._strategic = StrategicPatch(self.given, has_holes=has_holes)
            self._is_merge = self.text is None
        if self._is_merge or self.given is None:
            self.row = link_row(self.leaves.templates)

    def apply(self, scope: RuleContext, resource: dict[str, Json]) -> Patched:
        """Return the patched object; the original object does not change."""
        if self.leaves is None:
            return self._apply_other(scope, resource)
        try:
            values = self.values(scope)
        except InputError as error:
            return not_substituted(error)
        return self.apply_values(values, resource, scope.runtime)

    def apply_plain(
        self, frame: Frame, resource: dict[str, Json], spend: Spender
    ) -> Patched | None:
        """Apply without a scope; None if one is needed."""
        assert self.row is not None
        frame[OBJECT] = resource
        values = self.row(frame, spend)
        return None if values is None else self.apply_values(values, resource, spend)

    def apply_linked(
        self, frame: Frame, resource: dict[str, Json], spend: Spender
    ) -> Patched | None:
        """Apply linked patches without a scope; None if this is not possible."""
        assert self.row is not None
        frame[OBJECT] = resource
        values = self.row(frame, spend)
        if values is None:
            return None
        if self._is_merge:
            assert self._strategic is not None
            changed = self._strategic.apply_linked(resource, values, spend)
        else:
            changed = self._changed_by([values], resource, spend)
        return None if changed is None else applied(changed, resource)

    def apply_each_linked(
        self, rows: Sequence[Values], resource: dict[str, Json], spend: Spender
    ) -> Patched | None:
        """Apply the rows in one pass; None if the general algorithm is needed."""
        changed = self._changed_by(rows, resource, spend) if rows else resource
        return None if changed is None else applied(changed, resource)

    @property
    def is_plain(self) -> bool:
        """Whether ``apply_plain`` can be used."""
        return self.row is not None

    @property
    def has_values(self) -> bool:
        """Return whether ``values`` includes everything that depends on the scope."""
        return self.leaves is not None

    def values(self, scope: RuleContext) -> Values:
        """Return the values of the holes. Raises: InputError."""
        assert self.leaves is not None
        return [resolve(scope) for resolve in self.leaves.resolvers]

    def apply_values(
        self, values: Values, resource: dict[str, Json], spend: Spender
    ) -> Patched:
        """Apply the patch with these values in its holes."""
        if self._is_merge:
            return _merged(self._strategic, resource, values, spend)
        json_patch = self.text
        if type(json_patch) is Hole:
            json_patch = values[json_patch.number]
        try:
            json_patch = self._checked(json_patch)
        except InputError as error:
            return not_substituted(error)
        if self._strategic is not None:
            return _merged(self._strategic, resource, values, spend)
        return self._apply_either(
            filled(self.given, values), json_patch, resource, spend
        )

    def apply_each(
        self, rows: Sequence[Values], resource: dict[str, Json], spend: Spender
    ) -> Patched:
        """Apply the patch once for each row, in order."""
        changed = self._changed_by(rows, resource, spend) if rows else resource
        if changed is None:
            patched = self._one_by_one(rows, resource, spend)
            if patched.status == result.ERROR:
                return patched
            changed = patched.resource
        return applied(changed, resource)

    def _one_by_one(
        self, rows: Sequence[Values], resource: dict[str, Json], spend: Spender
    ) -> Patched:
        before = resource
        for values in rows:
            patched = self.apply_values(values, resource, spend)
            if patched.status == result.ERROR:
                return patched
            resource = patched.resource
        # A row may revert an earlier row.
        resulting = before if same(resource, before) else resource
        return Patched(result.PASS, "", resulting)

    def _changed_by(
        self, rows: Sequence[Values], resource: dict[str, Json], spend: Spender
    ) -> dict[str, Json] | None:
        """Apply all rows in one pass; None if each row needs a separate pass.

        Return the same object if nothing changes.
        """
        if self._is_merge:
            assert self._strategic is not None
            return self._strategic.apply_each(resource, rows, spend)
        json_patch = self.text
        if self.given is not None or json_patch is None:
            return None
        patches = [
            values[json_patch.number] if type(json_patch) is Hole else json_patch
            for values in rows
        ]
        for each in patches:
            if type(each) is not str or not each:
                return None
        return self._json.apply_each(resource, patches, spend)

    def _checked(self, json_patch: Json) -> str:
        """Return the string of a JSON patch, "" if there is none."""
        if type(json_patch) is str:
            return json_patch
        if json_patch is not None and self._place:
            raise ExpressionFailed(
                "mutate.patch",
                "json: cannot unmarshal a non-string value into Go struct"
                " field Mutation.mutate.patchesJson6902 of type string",
            )
        return ""

    def _apply_other(self, scope: RuleContext, resource: dict[str, Json]) -> Patched:
        """Apply a patch whose shape depends on the request."""
        assert self._resolve is not None
        try:
            patches = _at(self._resolve(scope), self._place)
            json_patch = self._checked(patches.get("patchesJson6902"))
        except InputError as error:
            return not_substituted(error)
        strategic_merge = patches.get("patchStrategicMerge")
        return self._apply_either(strategic_merge, json_patch, resource, scope.runtime)

    def _apply_either(
        self,
        strategic_merge: Json,
        json_patch: str,
        resource: dict[str, Json],
        spend: Spender,
    ) -> Patched:
        if strategic_merge is not None:
            strategic = StrategicPatch(strategic_merge, has_holes=False)
            return _merged(strategic, resource, (), spend)
        if not json_patch:
            return failed("empty mutate rule")
        return self._patched(resource, json_patch, spend)

    def _patched(
        self, resource: dict[str, Json], json_patch: str, spend: Spender
    ) -> Patched:
        """Apply a JSON patch."""
        try:
            patched = self._json.apply(resource, json_patch, spend)
        except InputError as error:
            return _not_patched(error)
        if patched is resource:
            return Patched(result.SKIP, NOTHING, resource)
        if type(patched) is not dict:
            return failed("failed to unmarshal patched resource: not an object")
        return _changed(patched)


def not_substituted(error: InputError) -> Patched:
    """Return the error of a patch with a variable that cannot be resolved."""
    return failed(f"variable substitution failed: {error.message}")


def _not_patched(error: InputError) -> Patched:
    return failed(f"failed to patch resource: {error.message}")


def _merged(
    strategic: StrategicPatch | None,
    resource: dict[str, Json],
    values: Values,
    spend: Spender,
) -> Patched:
    assert strategic is not None
    try:
        merged = strategic.apply(resource, values, spend)
    except InputError as error:
        return _not_patched(error)
    # KYVERNO: the object of a deletion is null, which any merge turns into {}.
    if merged is resource and resource:
        return Patched(result.SKIP, NOTHING, resource)
    return _changed(merged)


def _changed(resource: dict[str, Json]) -> Patched:
    """Return the patched object, or an error if it has no kind to decode it by."""
    kind = resource.get("kind")
    if type(kind) is str and kind:
        return Patched(result.PASS, "", resource)
    reason = f"Object 'Kind' is missing in '{json_text(resource)}'"
    return failed(f"failed to unmarshal patched resource: {reason}")


def _at(document: Json, path: tuple[str, ...]) -> dict[str, Json]:
    for key in path:
        document = document[key]
    part: dict[str, Json] = document
    return part
