"""Tell what of a value is read, and cut out that part.

Room: expr. Takes: marks by pattern/reads.py and jmespath/reads.py. Gives: Reads, and
``cutter(reads)``, which makes the part of a value that is read.
Next: program/recall.py.
May touch: nothing outside its arguments.

The law: what reads no more than its marks say comes to the same on a value and on its
part. A part keeps the types of containers and all scalars on the way, and as many
elements of a list as it has. To mark too much is always right.
Held by tests/fuzz/test_reads_fuzz.py.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.values.jsonvalue import Json

Cut = Callable[[Json], Json]

_WHOLE_BELOW: Final = 3
"""PERF: below so many names maps are small, e.g. a securityContext; to cut one takes
longer than to keep it whole. Lists are cut still: volumeMounts name random volumes."""


class Reads:
    """What is read of one place; ``fields`` of a map there, ``each`` of a list.

    ``whole``: all of it; ``names``: all names of a map. A place with no mark is read
    for its type alone.
    """

    __slots__ = ("_each", "fields", "names", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.names = False
        self.fields: dict[str, Reads] = {}
        self._each: Reads | None = None

    def field(self, name: str) -> "Reads":
        """Return the place below a name, which is read from now on."""
        return self.fields.setdefault(name, Reads())

    @property
    def each(self) -> "Reads":
        """Return the place that stands for every element of a list."""
        if self._each is None:
            self._each = Reads()
        return self._each

    @property
    def element(self) -> "Reads | None":
        """Return ``each`` if anybody asked for it."""
        return self._each

    def add(self, other: "Reads") -> None:
        """Read what ``other`` reads as well."""
        self.whole = self.whole or other.whole
        self.names = self.names or other.names
        for name, below in other.fields.items():
            self.field(name).add(below)
        if other.element is not None:
            self.each.add(other.element)


def cutter(reads: Reads, depth: int = 0) -> Cut | None:
    """Make what cuts out the part of a value that is read; None: it is the value."""
    if reads.whole or (depth >= _WHOLE_BELOW and not _has_lists(reads)):
        return None
    cut_items: Cut = _nothing
    if reads.element is not None:
        cut_item = cutter(reads.element, depth)
        if cut_item is None and not (reads.fields or reads.names):
            return None
        cut_items = _as_it_is if cut_item is None else _each(cut_item)
    names = tuple(
        (name, cutter(below, depth + 1)) for name, below in reads.fields.items()
    )
    if reads.names:
        return _cut_names(dict(names), cut_items)
    return _cut_map(names, cut_items)


def _nothing(_values: Json) -> Json:
    # Elements are nobody's business here, nor is how many there are.
    return []


def _as_it_is(values: Json) -> Json:
    return values


def _each(cut_item: Cut) -> Cut:
    return lambda values: list(map(cut_item, values))


def _has_lists(reads: Reads) -> bool:
    element = reads.element
    if element is not None and not element.whole:
        return True
    return any(_has_lists(below) for below in reads.fields.values() if not below.whole)


# PERF: perf/admission.py - one call for each map that is cut: a Pod's part takes 6 us.


def _cut_map(names: tuple[tuple[str, Cut | None], ...], cut_items: Cut) -> Cut:
    def cut_map(value: Json) -> Json:
        kind = type(value)
        if kind is not dict:
            return cut_items(value) if kind is list else value
        part: dict[str, Json] = {}
        for name, cut in names:
            if name in value:
                found = value[name]
                part[name] = found if cut is None else cut(found)
        return part

    return cut_map


def _cut_names(cuts: dict[str, Cut | None], cut_items: Cut) -> Cut:
    def cut_names(value: Json) -> Json:
        kind = type(value)
        if kind is not dict:
            return cut_items(value) if kind is list else value
        part: dict[str, Json] = {}
        for name, found in value.items():
            if name in cuts:
                cut = cuts[name]
                part[name] = found if cut is None else cut(found)
            else:
                # Nobody looks at it.
                part[name] = 0
        return part

    return cut_names
