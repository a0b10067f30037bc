"""Apply one patchStrategicMerge: linked for the object's kind, or the general way.

Room: program.mutate. Takes: a patch in which Holes replace values of the request.
Gives: StrategicPatch. Next: program/mutate/patch.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.3.
"""

from typing import NamedTuple

from kyverno_mp.errors import BudgetExceeded, InputError
from kyverno_mp.expr.template.leaves import filled
from kyverno_mp.program.mutate.anchors import (
    adds_only,
    check_lists,
    clean,
    has_anchors,
    has_lists_of_maps,
    prepare,
    preprocess,
    preprocess_adds,
)
from kyverno_mp.program.mutate.merge_link import LinkedMerge, link_merge
from kyverno_mp.program.mutate.merge_steps import Unfit, Values
from kyverno_mp.values.json_equal import same_paid
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.merge_keys import Shape, shape_of
from kyverno_mp.values.spending import FREE, Spender
from kyverno_mp.values.strategic_merge import merge

_PATCH_STEPS = 30


class Working(NamedTuple):
    """The object between patches."""

    resource: dict[str, Json]


class _General:
    """A patch without holes, prepared as far as possible."""

    __slots__ = ("_adds_only", "_is_anchored", "_lists", "_patch")

    def __init__(self, source: Json, spend: Spender) -> None:
        prepared = prepare(source, spend)
        self._is_anchored = has_anchors(source)
        self._adds_only = adds_only(prepared)
        self._lists = None
        self._patch = prepared
        if not self._is_anchored:
            self._lists = prepared if has_lists_of_maps(prepared) else None
            self._patch = clean(prepared)

    def apply(self, resource: dict[str, Json], spend: Spender) -> dict[str, Json]:
        patch = self._patch
        if self._adds_only and self._is_anchored:
            patch = preprocess_adds(patch, resource, spend)
        elif self._is_anchored:
            # KYVERNO: a false condition empties the patch.
            patch = preprocess(patch, resource, spend) or {}
        elif self._lists is not None:
            check_lists(self._lists, resource, spend)
        return merge(resource, patch, spend=spend)


class StrategicPatch:
    """A patchStrategicMerge; linked forms are cached, for the few kinds with lists."""

    __slots__ = ("_general", "_has_holes", "_merges", "_patch")

    def __init__(self, patch: Json, *, has_holes: bool) -> None:
        self._patch = patch
        self._has_holes = has_holes
        self._general: _General | None = None
        self._merges: dict[int, LinkedMerge | None] = {}

    def apply(self, working: Working, values: Values, spend: Spender = FREE) -> Working:
        """Merge into the object; return the same object when nothing changes.

        ``values``: of the patch's holes; ``spend``: charges for reads and copies.
        Raises: ExpressionFailed, ExpressionInvalid, BudgetExceeded.
        """
        resource = working.resource
        shape = _shape(resource)
        if shape is not None:
            linked = self._linked(shape)
            if linked is not None:
                try:
                    return Working(linked.apply(resource, values, spend))
                except BudgetExceeded:
                    raise
                except (Unfit, InputError):
                    pass
        spend.charge(_PATCH_STEPS)
        merged = self._generally(values, spend).apply(resource, spend)
        return working if same_paid(merged, resource, spend) else Working(merged)

    def _linked(self, shape: Shape) -> LinkedMerge | None:
        known = id(shape)  # shapes of built-in kinds live as long as the process
        if known not in self._merges:
            self._merges[known] = link_merge(self._patch, shape)
        return self._merges[known]

    def _generally(self, values: Values, spend: Spender) -> _General:
        if self._has_holes:
            return _General(filled(self._patch, values), spend)
        if self._general is None:
            self._general = _General(self._patch, FREE)
        return self._general


def _shape(resource: dict[str, Json]) -> Shape | None:
    api_version, kind = resource.get("apiVersion"), resource.get("kind")
    if type(api_version) is str and type(kind) is str:
        return shape_of(api_version, kind)
    return None
