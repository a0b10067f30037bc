"""Apply one patchStrategicMerge: linked for the object's kind, or the general way.

Room: program.mutate. Takes: a patch in which Holes stand for what the request gives.
Gives: StrategicPatch. Next: program/mutate/patch.
May touch: nothing outside its arguments; what is unchanged is shared.
Source: spec/engine.md 7.3.
"""

from typing import NamedTuple

from kyverno_mp.errors import InputError
from kyverno_mp.expr.template.leaves import filled
from kyverno_mp.program.mutate.anchors import (
    adds_only,
    clean,
    has_anchors,
    prepare,
    preprocess,
    preprocess_adds,
)
from kyverno_mp.program.mutate.merge_link import LinkedMerge, link_merge
from kyverno_mp.program.mutate.merge_steps import Unfit, Values
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.merge_keys import Shape, shape_of
from kyverno_mp.values.strategic_merge import is_tidied, merge


class Working(NamedTuple):
    """The object on its way through patches; ``is_tidy``: see strategic_merge."""

    resource: dict[str, Json]
    is_tidy: bool = False


class _General:
    """A patch without holes, as far prepared as it can be."""

    __slots__ = ("_adds_only", "_is_anchored", "_patch")

    def __init__(self, source: Json) -> None:
        prepared = prepare(source)
        self._is_anchored = has_anchors(source)
        self._adds_only = adds_only(prepared)
        self._patch = prepared if self._is_anchored else clean(prepared)

    def apply(self, resource: dict[str, Json], *, is_tidy: bool) -> dict[str, Json]:
        patch = self._patch
        if self._adds_only and self._is_anchored:
            patch = preprocess_adds(patch, resource)
        elif self._is_anchored:
            # KYVERNO: a condition that does not hold empties the patch.
            patch = preprocess(patch, resource) or {}
        return merge(resource, patch, is_tidy=is_tidy)


class StrategicPatch:
    """A patchStrategicMerge; what is linked is kept, for the few kinds with lists."""

    __slots__ = ("_general", "_has_holes", "_merges", "_patch")

    def __init__(self, patch: Json, *, has_holes: bool) -> None:
        self._patch = patch
        self._has_holes = has_holes
        self._general: _General | None = None
        self._merges: dict[int, LinkedMerge | None] = {}

    def apply(self, working: Working, values: Values) -> Working:
        """Merge into the object; the very object when nothing changes.

        ``values``: of the patch's holes. Raises: ExpressionFailed, ExpressionInvalid.
        """
        resource, is_tidy = working
        shape = _shape(resource)
        if shape is not None:
            linked = self._linked(shape)
            if linked is not None and (is_tidy or is_tidied(resource, shape)):
                try:
                    return Working(linked.apply(resource, values), is_tidy=True)
                except (Unfit, InputError):
                    pass
        merged = self._generally(values).apply(resource, is_tidy=is_tidy)
        return working if same(merged, resource) else Working(merged, is_tidy=True)

    def _linked(self, shape: Shape) -> LinkedMerge | None:
        known = id(shape)  # shapes of built-in kinds live as long as the process
        if known not in self._merges:
            self._merges[known] = link_merge(self._patch, shape)
        return self._merges[known]

    def _generally(self, values: Values) -> _General:
        if self._has_holes:
            return _General(filled(self._patch, values))
        if self._general is None:
            self._general = _General(self._patch)
        return self._general


def _shape(resource: dict[str, Json]) -> Shape | None:
    api_version, kind = resource.get("apiVersion"), resource.get("kind")
    if type(api_version) is str and type(kind) is str:
        return shape_of(api_version, kind)
    return None
