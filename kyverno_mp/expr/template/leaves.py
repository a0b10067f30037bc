"""Separate the request-dependent values of a document from its constant shape.

Room: expr. Takes: Document. Gives: its shape with Holes, and one closure per Hole.
Next: program/mutate.
Source: docs/behaviour/engine 3.1.

PERF: a caller that compiles the shape once does not walk the whole document again.
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
    """The placeholder for the result of the closure with this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Leaves(NamedTuple):
    """A JSON document with Holes in place of values, and the closures for the values.

    Called in order, the closures raise the same errors as the linked document.
    ``templates``: the templates of the closures.
    """

    shape: Json
    resolvers: Sequence[Resolve]
    templates: Sequence[Template] = ()


class _Shapeless(Exception):
    """The shape is not constant: a key has a variable, or the document is broken."""


def link_leaves(document: Document) -> Leaves | None:
    """Link a document by its leaves; None if its shape depends on the request."""
    if document.is_constant:
        return Leaves(document.constant, ())
    assert document.template is not None
    leaves: list[Template] = []
    try:
        shape = _shape(document.template, leaves)
    except _Shapeless:
        return None
    return Leaves(shape, tuple(map(link_template, leaves)), tuple(leaves))


def _shape(template: Template, leaves: list[Template]) -> Json:
    if isinstance(template, Constant):
        return template.value
    if isinstance(template, Broken):
        raise _Shapeless
    if isinstance(template, Items):
        return [_shape(item, leaves) for item in template.items]
    if isinstance(template, Entries):
        if any(entry.key_template is not None for entry in template.entries):
            raise _Shapeless
        return {e.key: _shape(e.value, leaves) for e in template.entries}
    leaves.append(template)
    return Hole(len(leaves) - 1)


def filled(shape: Json, values: Sequence[Json]) -> Json:
    """Fill the holes of a shape, or of a part of it, with values."""
    kind = type(shape)
    if kind is dict:
        return {key: filled(item, values) for key, item in shape.items()}
    if kind is list:
        return [filled(item, values) for item in shape]
    return values[shape.number] if kind is Hole else shape
