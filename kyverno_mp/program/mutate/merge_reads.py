"""Mark the parts of an object that a linked patch reads.

Room: program.mutate. Takes: a strategic merge with Holes, or the operations of a JSON
patch; the Shape of the object's kind. Gives: marks on Reads, the paths that it writes.
Next: program/recall/mutation_reads.
Source: program/mutate/merge_link and values/patches/json_additions, whose steps these
marks follow; checked by tests/fuzz/test_mutation_recall_fuzz.py.

Marking too much is always correct. The marks may be wrong for a patch that needs the
general algorithm, but program/recall/mutations never caches the result of such a patch.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kyverno_mp.expr.pattern.anchors import ADD_IF_NOT_PRESENT
from kyverno_mp.expr.reads import Reads, ReadsUnknown
from kyverno_mp.program.mutate.anchors import anchor_of, has_anchors
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_additions import Addition
from kyverno_mp.values.patches.merge_keys import PLAIN, Shape

_NO_INDEX: Final = -1
_PLACES_MAX: Final = 16


class Marks:
    """The fields of an object that rules read, and the metadata they write."""

    __slots__ = ("_keys", "object", "written")

    def __init__(self) -> None:
        self.object = Reads()
        self.written: set[tuple[str, ...]] = set()
        """The first two steps of every written path."""
        self._keys: list[tuple[Reads, str, set[str]]] = []

    def compares(self, element: Reads, key: str, values: Iterable[str]) -> None:
        """Note that elements are identified by a key, compared with these texts."""
        for reads, marked_key, compared in self._keys:
            if reads is element and marked_key == key:
                compared.update(values)
                return
        self._keys.append((element, key, set(values)))

    def end(self) -> None:
        """Mark the keys that are only compared; call it after marking all rules."""
        for element, key, values in self._keys:
            if key not in element.fields:
                element.field(key).texts = frozenset(values)


def mark_merge(patch: dict[str, Json], shape: Shape, marks: Marks) -> None:
    """Mark the parts that a strategic merge reads and writes."""
    for written_key, item in patch.items():
        key = _name_of(written_key)
        below = item if type(item) is dict else {}
        marks.written |= {(key, _name_of(name)) for name in below} or {(key,)}
    _mark_map(patch, shape, marks.object, marks)


def _name_of(written_key: str) -> str:
    anchor = anchor_of(written_key)
    return written_key if anchor is None else anchor[1]


def _mark_map(
    pattern: dict[str, Json], shape: Shape, reads: Reads, marks: Marks
) -> None:
    for written_key, item in pattern.items():
        anchor = anchor_of(written_key)
        field_reads = reads.field(written_key if anchor is None else anchor[1])
        if anchor is not None and anchor[0] != ADD_IF_NOT_PRESENT:
            field_reads.whole = True
        elif type(item) is dict:
            below = shape.fields.get(_name_of(written_key), PLAIN)
            _mark_map(item, below, field_reads, marks)
        elif type(item) is list:
            _mark_list(
                item, shape.fields.get(_name_of(written_key), PLAIN), field_reads, marks
            )


def _mark_list(items: list[Json], shape: Shape, reads: Reads, marks: Marks) -> None:
    keys = shape.keys
    if keys is None or len(keys) != 1 or not all(type(item) is dict for item in items):
        reads.whole = True
        return
    key, element = keys[0], reads.each
    values = [item.get(key) for item in items]
    if has_anchors(items) or any(type(value) is not str for value in values):
        element.field(key)
    else:
        marks.compares(element, key, values)
    for item in items:
        rest = {name: value for name, value in item.items() if name != key}
        _mark_map(rest, Shape(shape.fields), element, marks)


def mark_additions(samples: Sequence[Sequence[Addition]], marks: Marks) -> None:
    """Mark the parts that the operations of a JSON patch read and write.

    ``samples``: the operations of its text. A text with the index of a foreach element
    has two samples, with different indexes. Raises: ReadsUnknown.
    """
    first = samples[0]
    for sample in samples:
        if len(sample) != len(first):
            raise ReadsUnknown("the text decides how many operations there are")
        for first_addition, same in zip(first, sample, strict=True):
            _mark_addition(same, marks, is_fixed=first_addition.key == same.key)


def _mark_addition(addition: Addition, marks: Marks, *, is_fixed: bool) -> None:
    steps = [*addition.parents, (addition.key, addition.position)]
    marks.written.add(tuple(name for name, _ in steps[:2]))
    places = [marks.object]
    for name, index in addition.parents:
        below = [reads.field(name) for reads in places]
        if index != _NO_INDEX:
            # A list index or the key of a map.
            below += [reads.each for reads in places]
        if len(below) > _PLACES_MAX:
            raise ReadsUnknown("a path with many indexes")
        places = below
    for reads in places:
        # A list's length and the old value of a map's key are read.
        _ = reads.each
        reads.field(addition.key).whole = True
        reads.whole = reads.whole or not is_fixed
