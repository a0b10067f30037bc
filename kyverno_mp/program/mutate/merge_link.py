"""Link a strategic merge patch, including anchors, for the objects of one kind.

Room: program.mutate. Takes: a patch, possibly with Holes instead of scalars; the Shape
of a built-in kind. Gives: LinkedMerge, or None for a patch with rare features.
Next: program/mutate/strategic.
Source: docs/behaviour/engine 7.3; Kyverno
pkg/engine/mutate/patch/strategicPreprocessing.go.

Rare features, which anchors.py handles: ``$patch``; ``<()`` or further lists with
anchors below an element; more than one element, or a list not merged by name, with
anchors; conditions below the top of an element; ``+()`` in a condition or next to its
own key.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kyverno_mp.errors import InputError
from kyverno_mp.expr.pattern.anchors import ADD_IF_NOT_PRESENT
from kyverno_mp.expr.pattern.nodes import CONDITION
from kyverno_mp.expr.pattern.parse import cached_program
from kyverno_mp.expr.template.leaves import Hole
from kyverno_mp.program.mutate.anchors import (
    anchor_of,
    cleaned_part,
    comparable,
    has_additions,
    has_anchors,
    has_globals,
    is_condition,
    prepare,
)
from kyverno_mp.program.mutate.merge_lists import (
    Keyed,
    anchored_list,
    keyed_list,
    keyed_rows,
    other_list,
)
from kyverno_mp.program.mutate.merge_steps import (
    ENTRIES_FREE,
    Merge,
    Own,
    Rows,
    Step,
    Test,
    Unfit,
    Unmet,
    Values,
    addition,
    condition,
    deletion,
    hole,
    hole_condition,
    map_merge,
    mapping,
    repeated,
    scalar,
    shared_addition,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.merge_keys import PLAIN, Shape
from kyverno_mp.values.patches.merge_list import ABSENT
from kyverno_mp.values.spending import FREE, Spender

_NAME = "name"
_KIND = "kind"
_ANY = "*"
_CONSTANT_DEPTH = 3
_CONSTANT_SIZE = 8
_DIRECTIVE = "$patch"


class _NeedsGeneralMerge(Exception):
    """The patch has a feature that only the general algorithm supports."""


class LinkedMerge:
    """A patch linked for objects of one shape."""

    __slots__ = ("_merge", "_merge_rows")

    def __init__(self, merge: Merge, merge_rows: Merge | None) -> None:
        self._merge = merge
        self._merge_rows = merge_rows

    def apply(
        self, resource: dict[str, Json], values: Values, spend: Spender = FREE
    ) -> dict[str, Json]:
        """Merge into an object; return the same object if nothing changes.

        ``values``: the values of the patch's holes. Raises: Unfit, InputError; the
        caller then uses the general algorithm.
        """
        # PERF: a separate constructor would add a call to every patch.
        state = Own()
        state.spend = spend
        try:
            return self._merge(resource, values, state)
        except Unmet:
            # KYVERNO: a false condition empties the patch.
            return resource

    def apply_each(
        self, resource: dict[str, Json], rows: Rows, spend: Spender = FREE
    ) -> dict[str, Json]:
        """Merge the rows in order; the kind does not change.

        Raises: Unfit, InputError; the caller then merges the rows one by one.
        """
        if self._merge_rows is None:
            raise Unfit
        if not rows:
            return resource
        state = Own()
        state.spend = spend
        try:
            return self._merge_rows(resource, rows, state)
        except Unmet as error:
            # The false condition affects only this row.
            raise Unfit from error


def link_merge(patch: Json, shape: Shape) -> LinkedMerge | None:
    """Link a patch from the policy; return None if it has rare features."""
    try:
        linked = _Map(prepare(patch), shape, is_top=True)
        rows = None if linked.names(_KIND) else linked.merge_rows
        return LinkedMerge(linked.merge, rows)
    except (_NeedsGeneralMerge, InputError):
        return None


class _Slots:
    """Counts the ``+()`` in an element of a list."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def take(self) -> int:
        self.count += 1
        return self.count - 1


class _Part(NamedTuple):
    """A linked value; ``is_solid``: it always has content; ``rows``: for Rows."""

    step: Step
    is_solid: bool
    rows: Step | None = None


class _Map:
    """A map of the patch, converted to a Merge.

    ``slots``: the slots of the list element that contains the map, None outside of
    lists.
    """

    def __init__(
        self,
        pattern: dict[str, Json],
        shape: Shape,
        *,
        slots: _Slots | None = None,
        is_element: bool = False,
        is_top: bool = False,
    ) -> None:
        self.is_solid = False
        self.tests: list[Test] = []
        self.additions: list[tuple[int, str]] = []
        self._shape = shape
        self._slots = slots
        self._is_element = is_element
        self._is_top = is_top
        self._entries: dict[str, _Part] = {}
        for written_key, item in pattern.items():
            if written_key == _DIRECTIVE:
                raise _NeedsGeneralMerge
            anchor = anchor_of(written_key)
            if anchor is None:
                self._plain(written_key, item)
            elif anchor[0] == ADD_IF_NOT_PRESENT:
                self._addition(anchor[1], item)
            else:
                self._condition(*anchor, item)

    def names(self, key: str) -> bool:
        """Return whether the map merges this key."""
        return key in self._entries

    @property
    def merge(self) -> Merge:
        """The Merge of the map with its conditions."""
        return map_merge(self._steps(), tuple(self.tests))

    def merge_but(self, left_out: str) -> Merge:
        """Return the Merge of the map with its conditions, without one key."""
        entries = tuple([each for each in self._steps() if each[0] != left_out])
        return map_merge(entries, tuple(self.tests))

    @property
    def merge_met(self) -> Merge:
        """The Merge of the map without its conditions."""
        return map_merge(self._steps(), ())

    @property
    def merge_rows(self) -> Merge:
        """The Merge of the map with its conditions, for Rows."""
        if self.tests or len(self._entries) > ENTRIES_FREE:
            return repeated(self.merge)
        entries = [
            (key, part.rows or repeated(part.step))
            for key, part in self._entries.items()
        ]
        return map_merge(tuple(entries), ())

    def constant(self, pattern: Json) -> Json:
        """Return the value for an object without the map; None if it is not constant.

        PERF: objects share the value.
        """
        if self._slots is not None or not _is_constant(pattern, _CONSTANT_DEPTH):
            return None
        state = Own()
        state.spend = FREE
        try:
            # A map that contains only conditions adds nothing.
            return self.merge({}, (), state) or None
        except (Unmet, Unfit, InputError):
            return None

    def _steps(self) -> tuple[tuple[str, Step], ...]:
        return tuple([(key, part.step) for key, part in self._entries.items()])

    def _put(self, key: str, part: _Part) -> None:
        if key in self._entries or (self._is_element and key == _NAME):
            raise _NeedsGeneralMerge
        self._entries[key] = part
        self.is_solid = self.is_solid or part.is_solid

    def _field(self, key: str) -> Shape:
        return self._shape.fields.get(key, PLAIN)

    def _plain(self, key: str, item: Json) -> None:
        if self._is_element and key == _NAME:
            # KYVERNO: the object's element replaces this name with its own.
            if not _is_scalar(item) or isinstance(item, Hole):
                raise _NeedsGeneralMerge
            self.is_solid = True
            return
        part = _part(item, self._field(key), self._slots)
        if part is not None:
            self._put(key, part)

    def _addition(self, key: str, item: Json) -> None:
        if item is None or has_anchors(item):
            raise _NeedsGeneralMerge
        inner = _part(item, self._field(key), None)
        if inner is None or not inner.is_solid:
            raise _NeedsGeneralMerge
        if self._slots is None:
            self._put(key, _Part(addition(inner.step), is_solid=False))
            return
        slot = self._slots.take()
        self._put(key, _Part(shared_addition(slot, inner.step), is_solid=False))
        if self._is_element:
            self.additions.append((slot, key))

    def _condition(self, modifier: str, key: str, expected: Json) -> None:
        if self._slots is not None and not (self._is_element and modifier == CONDITION):
            raise _NeedsGeneralMerge
        if isinstance(expected, Hole):
            self.tests.append(hole_condition(key, expected.number))
            return
        if self._is_element and key == _NAME and expected == _ANY:
            # PERF: this condition is true for every element that anchored_list accepts.
            return
        if not _is_scalar(expected) and (
            has_additions(expected) or [*_holes(expected)]
        ):
            raise _NeedsGeneralMerge
        self.tests.append(condition(key, cached_program(comparable(expected)).passes))
        remainder = cleaned_part(expected, delete_scalar=True)
        if remainder is not ABSENT:
            if self._is_top:
                raise _NeedsGeneralMerge
            part = _part(remainder, self._field(key), None)
            if part is None:
                raise _NeedsGeneralMerge
            self._put(key, part)


def _part(item: Json, shape: Shape, slots: _Slots | None) -> _Part | None:
    """Link the value of a key; None for a value that cleaning would remove."""
    if isinstance(item, Hole):
        return _Part(hole(item.number), is_solid=True)
    if type(item) is dict:
        if not item:
            return _Part(mapping(map_merge((), ()), is_solid=True), is_solid=True)
        linked = _Map(item, shape, slots=slots)
        constant = linked.constant(item)
        step = mapping(linked.merge, is_solid=linked.is_solid, constant=constant)
        rows = mapping(linked.merge_rows, is_solid=linked.is_solid, constant=constant)
        return _Part(step, linked.is_solid, rows)
    if type(item) is list:
        return _list(item, shape, slots)
    if item is None:
        return _Part(deletion, is_solid=True)
    if type(item) is str and is_condition(item):
        raise _NeedsGeneralMerge
    return _Part(scalar(item), is_solid=True)


def _list(items: list[Json], shape: Shape, slots: _Slots | None) -> _Part | None:
    if has_anchors(items):
        if slots is not None or len(items) != 1 or shape.keys != (_NAME,):
            raise _NeedsGeneralMerge
        return _anchored(items[0], shape)
    remainder = cleaned_part(items, delete_scalar=False)
    if remainder is ABSENT or _has_directive(remainder):
        raise _NeedsGeneralMerge
    step = other_list(remainder, tuple(_holes(remainder)), shape)
    if remainder and shape.keys is not None and len(shape.keys) == 1:
        key = shape.keys[0]
        elements = _keyed(remainder, key, Shape(shape.fields))
        if elements is not None:
            step = keyed_list(key, elements, step)
            return _Part(step, True, keyed_rows(key, elements, step))
    return _Part(step, is_solid=True)


def _anchored(element: Json, shape: Shape) -> _Part:
    if type(element) is not dict or has_globals(element):
        raise _NeedsGeneralMerge
    slots = _Slots()
    linked = _Map(element, Shape(shape.fields), slots=slots, is_element=True)
    step = anchored_list(
        merge=linked.merge_met,
        tests=tuple(linked.tests),
        additions=tuple(linked.additions),
        slots=slots.count,
        is_solid=linked.is_solid,
    )
    return _Part(step, is_solid=False)


def _keyed(items: list[Json], key: str, shape: Shape) -> Sequence[Keyed] | None:
    """Link elements that have a key; None if any element lacks the key."""
    elements = []
    for item in items:
        key_value = item.get(key) if type(item) is dict else None
        if type(key_value) is not str and not isinstance(key_value, Hole):
            return None
        linked, text_part = _Map(item, shape), _part(key_value, PLAIN, None)
        if text_part is None:
            return None
        created = mapping(linked.merge, is_solid=True, constant=linked.constant(item))
        elements.append(Keyed(text_part.step, created, linked.merge_but(key)))
    return tuple(elements)


def _is_scalar(value: Json) -> bool:
    return type(value) is not dict and type(value) is not list


def _is_constant(value: Json, depth: int) -> bool:
    """Return whether a value is small and has no holes.

    SAFETY: the size is bounded, because each enclosing map checks the value again.
    """
    if _is_scalar(value):
        return not isinstance(value, Hole)
    if not depth or len(value) > _CONSTANT_SIZE:
        return False
    items = value.values() if type(value) is dict else value
    return all(_is_constant(item, depth - 1) for item in items)


def _holes(value: Json) -> Iterator[int]:
    if isinstance(value, Hole):
        yield value.number
    elif not _is_scalar(value):
        for item in value.values() if type(value) is dict else value:
            yield from _holes(item)


def _has_directive(value: Json) -> bool:
    if type(value) is dict:
        return _DIRECTIVE in value or any(map(_has_directive, value.values()))
    return type(value) is list and any(map(_has_directive, value))
