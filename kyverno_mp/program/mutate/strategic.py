"""Apply one patchStrategicMerge, linked for the kind or by the general algorithm.

Room: program.mutate. Takes: a patch in which Holes replace values that depend on the
request.
Gives: StrategicPatch. Next: program/mutate/patch.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.3.
"""

from collections.abc import Sequence

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
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same_paid
from kyverno_mp.values.patches.merge_keys import Shape, shape_of
from kyverno_mp.values.patches.strategic_merge import merge
from kyverno_mp.values.spending import FREE, Spender

_PATCH_STEPS = 30


class _General:
    """A patch without holes, preprocessed as far as possible."""

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
    """A patchStrategicMerge, with cached linked patches for kinds with keyed lists."""

    __slots__ = (
        "_general",
        "_has_holes",
        "_last",
        "_merges",
        "_patch",
    )

    def __init__(self, patch: Json, *, has_holes: bool) -> None:
        self._patch = patch
        self._has_holes = has_holes
        self._general: _General | None = None
        self._merges: dict[int, LinkedMerge | None] = {}
        # PERF: most patches apply to one kind only. A single tuple, because threads
        # share it.
        self._last: tuple[str, str, LinkedMerge | None] = "", "", None

    def apply(
        self, resource: dict[str, Json], values: Values, spend: Spender = FREE
    ) -> dict[str, Json]:
        """Merge into the object; return the same object if nothing changes.

        ``values``: the values of the patch's holes; ``spend`` charges for reads and
        copies.
        Raises: ExpressionFailed, ExpressionInvalid, BudgetExceeded.
        """
        linked = self._linked(resource)
        if linked is not None:
            try:
                return linked.apply(resource, values, spend)
            except BudgetExceeded:
                raise
            except (Unfit, InputError):
                pass
        spend.charge(_PATCH_STEPS)
        merged = self._generally(values, spend).apply(resource, spend)
        return resource if same_paid(merged, resource, spend) else merged

    def apply_each(
        self, resource: dict[str, Json], rows: Sequence[Values], spend: Spender
    ) -> dict[str, Json] | None:
        """Merge the rows in order, in one pass.

        Return None if the general algorithm is needed. The object's kind does not
        change.
        Raises: BudgetExceeded.
        """
        linked = self._linked(resource)
        if linked is None:
            return None
        try:
            return linked.apply_each(resource, rows, spend)
        except BudgetExceeded:
            raise
        except (Unfit, InputError):
            return None

    def apply_linked(
        self, resource: dict[str, Json], values: Values, spend: Spender
    ) -> dict[str, Json] | None:
        """Merge with the linked patch; None if the general algorithm is needed.

        Raises: BudgetExceeded.
        """
        linked = self._linked(resource)
        if linked is None:
            return None
        try:
            return linked.apply(resource, values, spend)
        except BudgetExceeded:
            raise
        except (Unfit, InputError):
            return None

    def _linked(self, resource: dict[str, Json]) -> LinkedMerge | None:
        api_version, kind = resource.get("apiVersion"), resource.get("kind")
        last_version, last_kind, linked = self._last
        if kind == last_kind and api_version == last_version:
            return linked
        if type(api_version) is not str or type(kind) is not str:
            return None
        shape = shape_of(api_version, kind)
        linked = None if shape is None else self._merge(shape)
        self._last = api_version, kind, linked
        return linked

    def _merge(self, shape: Shape) -> LinkedMerge | None:
        shape_id = id(shape)  # Shapes of built-in kinds are never freed.
        if shape_id not in self._merges:
            self._merges[shape_id] = link_merge(self._patch, shape)
        return self._merges[shape_id]

    def _generally(self, values: Values, spend: Spender) -> _General:
        if self._has_holes:
            return _General(filled(self._patch, values), spend)
        if self._general is None:
            self._general = _General(self._patch, FREE)
        return self._general
