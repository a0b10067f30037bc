"""Separate what changes with the request in a document from what never does.

Room: expr. Takes: Document. Gives: its shape with Holes, and one closure per hole.
Next: program/mutate. May touch: nothing outside its arguments.
Source: spec/engine.md 3.1.

PERF: who compiles the shape once need not look at the whole document each time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kyverno_mp.expr.template.link import Resolve, link_template
from kyverno_mp.expr.template.nodes import (
    Broken,
    Constant,
    Document,
    Entries,
    Items,
    Template,
)
from kyverno_mp.values.jsonvalue import Json


class Hole:
    """The place of the value that the closure of this number gives."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Leaves(NamedTuple):
    """A document as JSON in which Holes stand for values, and what gives the values.

    Called in order, the closures raise what the linked document would raise.
    """

    shape: Json
    resolvers: Sequence[Resolve]

    def filled(self, values: Sequence[Json]) -> Json:
        """Return the document that ``link_document`` gives; never change it."""
        return filled(self.shape, values) if self.resolvers else self.shape


class _Shapeless(Exception):
    """Variables stand in keys, or the document is broken."""


def link_leaves(document: Document) -> Leaves | None:
    """Link a document by its leaves; None when its shape depends on the request."""
    if document.is_constant:
        return Leaves(document.constant, ())
    assert document.template is not None
    resolvers: list[Resolve] = []
    try:
        shape = _shape(document.template, resolvers)
    except _Shapeless:
        return None
    return Leaves(shape, tuple(resolvers))


def _shape(template: Template, resolvers: list[Resolve]) -> Json:
    if isinstance(template, Constant):
        return template.value
    if isinstance(template, Broken):
        raise _Shapeless
    if isinstance(template, Items):
        return [_shape(item, resolvers) for item in template.items]
    if isinstance(template, Entries):
        if any(entry.key_template is not None for entry in template.entries):
            raise _Shapeless
        return {e.key: _shape(e.value, resolvers) for e in template.entries}
    resolvers.append(link_template(template))
    return Hole(len(resolvers) - 1)


def filled(shape: Json, values: Sequence[Json]) -> Json:
    """Put the values into the holes of a shape or of a part of it."""
    kind = type(shape)
    if kind is dict:
        return {key: filled(item, values) for key, item in shape.items()}
    if kind is list:
        return [filled(item, values) for item in shape]
    return values[shape.number] if kind is Hole else shape
