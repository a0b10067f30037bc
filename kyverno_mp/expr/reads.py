"""Record which parts of a value are read, and extract those parts.

Room: expr. Takes: marks by expr/pattern/reads.py, expr/jmespath/reads.py and
expr/cel/reads.py. Gives: Reads; Found, the places that a value may come from;
``cutter(reads)``, which extracts the part of a value that is read.
Next: program/recall/verdicts.py.

Invariant: code that reads only the marked parts returns equal results for a value and
for its extract. An extract keeps the types of containers, all scalars on the path, and
the lengths of lists. Marking too much is always correct. Tested by
tests/fuzz/test_reads_fuzz.py.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kyverno_mp.limits import ORIGINS_MAX, READS_DEPTH_MAX, READS_PLACES_MAX
from kyverno_mp.values.jsonvalue import Json

Cut = Callable[[Json], Json]

_TEXT: Final = frozenset({str})
_FEW_NAMES: Final = 64
_WHOLE_BELOW: Final = 3
"""PERF: maps with fewer names are small, e.g. a securityContext; keeping such a map
whole is faster than extracting parts. Parts of lists are extracted anyway, because
volumeMounts contain random names."""


class Reads:
    """The reads of one place: ``fields`` of a map, ``each`` element of a list.

    ``whole``: everything is read; ``names``: all keys of a map are read. If a place has
    no marks, only its type is read. ``texts``: set for a key that distinguishes the
    elements of a list. Its value is compared only with these texts and with the values
    in the other elements.
    """

    __slots__ = ("_each", "fields", "names", "size", "texts", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.names = False
        self.fields: dict[str, Reads] = {}
        self.texts: frozenset[str] | None = None
        self._each: Reads | None = None
        self.size = 0
        """The number of places below, as counted by ``is_too_large``."""

    def field(self, name: str) -> "Reads":
        """Return the place below a key and mark the key as read."""
        return self.fields.setdefault(name, Reads())

    @property
    def each(self) -> "Reads":
        """Return the place that represents every element of a list."""
        if self._each is None:
            self._each = Reads()
        return self._each

    @property
    def element(self) -> "Reads | None":
        """Return ``each`` if it is marked."""
        return self._each

    def is_too_large(self) -> bool:
        """Count the places, and return whether they are too deep or too many.

        Code that walks the places is recursive, and some of it runs on the event loop.
        """
        level, self.size = [self], 0
        for _ in range(READS_DEPTH_MAX):
            below: list[Reads] = []
            for reads in level:
                below += reads.fields.values()
                if reads.element is not None:
                    below.append(reads.element)
            self.size += len(below)
            if not below or self.size > READS_PLACES_MAX:
                return self.size > READS_PLACES_MAX
            level = below
        return True

    def add(self, reads: "Reads") -> None:
        """Add the reads of ``other``."""
        self.whole = self.whole or reads.whole
        self.names = self.names or reads.names
        for name, below in reads.fields.items():
            self.field(name).add(below)
        if reads.element is not None:
            self.each.add(reads.element)


_IDENTITY: Final = frozenset({"name", "uid", "resourceVersion", "creationTimestamp"})
"""Metadata that no two objects share."""


def identifies(reads: Reads) -> bool:
    """Return whether the marked parts of an object differ from object to object."""
    metadata = reads.fields.get("metadata")
    if reads.whole or metadata is None:
        return reads.whole
    return metadata.whole or not _IDENTITY.isdisjoint(metadata.fields)


class ReadsUnknown(Exception):
    """The reads of an expression are unknown."""


class Found(msgspec.Struct, frozen=True):
    """The possible origins of a value: one of ``places``, or a list of ``items``.

    With neither, all reads of the value are already marked.
    """

    places: tuple[Reads, ...] = ()
    items: tuple["Found", ...] = ()
    bound: Mapping[str, "Found"] = {}
    """Names that shadow the fields of the place, e.g. ``element`` in a loop."""

    def read_whole(self) -> None:
        """Mark everything that the value may contain.

        Variables can form a graph with few origins but endless paths, so each origin is
        visited once.
        """
        waiting, visited = [self], {id(self)}
        while waiting:
            origin = waiting.pop()
            for reads in origin.places:
                reads.whole = True
            for item in origin.items:
                if id(item) not in visited:
                    visited.add(id(item))
                    waiting.append(item)

    def elements(self) -> "Found":
        """Return the possible origins of an element, if the value is a list."""
        return both(Found(tuple([p.each for p in self.places])), *self.items)

    def named(self, name: str) -> "Found":
        """Return the possible origins of the value's member ``name``."""
        if name in self.bound:
            return self.bound[name]
        return Found(tuple([reads.field(name) for reads in self.places]))


def both(*origins: Found) -> Found:
    """Return the union of these origins. Raises: ReadsUnknown if there are too many."""
    places = {id(reads): reads for origin in origins for reads in origin.places}
    items = {id(item): item for origin in origins for item in origin.items}
    if len(places) + len(items) > ORIGINS_MAX:
        raise ReadsUnknown("origins")
    return Found(tuple(places.values()), tuple(items.values()))


def cutter(reads: Reads, depth: int = 0) -> Cut | None:
    """Compile a function that extracts the parts read; None if everything is read."""
    if reads.texts is not None:
        return _masked(reads.texts)
    if reads.whole or (depth >= _WHOLE_BELOW and not _has_lists(reads)):
        return None
    cut_items: Cut = _nothing
    if reads.element is not None:
        cut_item = cutter(reads.element, depth)
        if cut_item is None and not (reads.fields or reads.names):
            return None
        cut_items = _as_it_is if cut_item is None else _each(cut_item)
        for name, below in reads.element.fields.items():
            if cut_item is not None and below.texts is not None:
                cut_items = _told_apart(name, cut_items)
    names = tuple(
        (name, cutter(below, depth + 1)) for name, below in reads.fields.items()
    )
    if reads.names:
        return _cut_names(dict(names), cut_items)
    return _cut_map(names, cut_items)


def _nothing(_values: Json) -> Json:
    # Neither the elements nor their number is read here.
    return []


def _as_it_is(values: Json) -> Json:
    return values


def _each(cut_item: Cut) -> Cut:
    return lambda values: list(map(cut_item, values))


def _masked(strings: frozenset[str]) -> Cut:
    return lambda value: value if value in strings else None


def _told_apart(key: str, cut_items: Cut) -> Cut:
    """Reject lists in which two elements have the same text under ``key``."""

    def cut_different(values: Json) -> Json:
        distinct = {value[key] for value in values}
        if len(distinct) < len(values) or not _TEXT.issuperset(map(type, distinct)):
            raise ValueError(key)
        return cut_items(values)

    return cut_different


def _has_lists(reads: Reads) -> bool:
    element = reads.element
    if element is not None and not element.whole:
        return True
    return any(_has_lists(below) for below in reads.fields.values() if not below.whole)


# PERF: perf/admission.py - one call per extracted map: a Pod takes 6 us.


def _cut_map(names: tuple[tuple[str, Cut | None], ...], cut_items: Cut) -> Cut:
    if len(names) > _FEW_NAMES:
        return _cut_small_maps(dict(names), cut_items)

    def cut_map(value: Json) -> Json:
        kind = type(value)
        if kind is not dict:
            return cut_items(value) if kind is list else value
        part: dict[str, Json] = {}
        for name, cut in names:
            if name in value:
                member = value[name]
                part[name] = member if cut is None else cut(member)
        return part

    return cut_map


def _cut_small_maps(cuts: dict[str, Cut | None], cut_items: Cut) -> Cut:
    """Extract from maps that contain few of many names, by iterating over the map.

    SAFETY: a policy can contain many names, and an object can contain an empty map
    thousands of times. Iterating over each map limits the time to the size of the
    object.
    """

    def cut_map(value: Json) -> Json:
        kind = type(value)
        if kind is not dict:
            return cut_items(value) if kind is list else value
        part: dict[str, Json] = {}
        for name, member in value.items():
            if name in cuts:
                cut = cuts[name]
                part[name] = member if cut is None else cut(member)
        return part

    return cut_map


def _cut_names(cuts: dict[str, Cut | None], cut_items: Cut) -> Cut:
    def cut_names(value: Json) -> Json:
        kind = type(value)
        if kind is not dict:
            return cut_items(value) if kind is list else value
        part: dict[str, Json] = {}
        for name, member in value.items():
            if name in cuts:
                cut = cuts[name]
                part[name] = member if cut is None else cut(member)
            else:
                # The value of this key is never read.
                part[name] = 0
        return part

    return cut_names


class Strangers:
    """Puts unknown content wherever an extract omits something.

    Code that reads only the marked parts passes this content through. So it appears in
    a result that contains anything outside those parts. Each piece of content is
    unique.
    """

    __slots__ = ("_count", "_wholes")

    WORD: Final = "\0stranger"

    def __init__(self) -> None:
        self._count = 0
        # PERF: without this cache, each element of a list would compile the same
        # function.
        self._wholes: dict[tuple[int, int], bool] = {}

    def put_into(self, reads: Reads, part: Json, depth: int = 0) -> Json:
        """Add unknown content to an extract made by ``cutter(reads, depth)``."""
        if reads.texts is not None:
            return self._next() if part is None else part
        at = id(reads), depth
        if at not in self._wholes:
            self._wholes[at] = cutter(reads, depth) is None
        if self._wholes[at]:
            return part
        if type(part) is list:
            below = reads.element
            if below is None:
                return [self._next()]
            return [self.put_into(below, item, depth) for item in part]
        if type(part) is not dict:
            return part
        filled = {
            name: self.put_into(reads.fields.get(name, _UNREAD), item, depth + 1)
            for name, item in part.items()
        }
        filled[self._next()] = self._next()
        return filled

    def _next(self) -> str:
        self._count += 1
        return f"{self.WORD}{self._count}"


_UNREAD: Final = Reads()
