"""Compute a patch's values without a scope, if they are strings at plain paths.

Room: program.mutate. Takes: the templates of a patch's holes, linked once; a Frame.
Gives: the values of the holes. Next: program/mutate/patch, foreach.
Source: docs/behaviour/engine 3.1, 7.5.

PERF: ``{{ element.name }}`` and ``{{ request.namespace }}`` need no scope. Creating a
scope costs more than all other work for a rule or an element.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.expr.jmespath.link import field_names
from kyverno_mp.expr.template.link import charge_joining
from kyverno_mp.expr.template.nodes import Lookup, Mixed, Template, Whole
from kyverno_mp.expr.template.scan import OPENING
from kyverno_mp.program.mutate.merge_steps import Values
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

Frame = dict[str, Json]
"""The root variables that a scope would have; OBJECT: the current object."""
Row = Callable[[Frame, Spender], Values | None]
"""Returns the values of the holes; None if they need the rule's scope."""
_Text = Callable[[Frame], str | None]
"""Returns the string value of one variable; None for any other type."""
_Value = Callable[[Frame, Spender], str | None]

OBJECT: Final = "request.object"
_ROOTS: Final = frozenset(
    {OBJECT, "request", "serviceAccountName", "serviceAccountNamespace"}
)
_ELEMENT: Final = "element"
_INDEX: Final = "elementIndex"


def object_path(lookup: Lookup) -> list[str] | None:
    """Return the path of a query into the object; None for any other query."""
    names = path_of(lookup)
    return None if names is None or names[0] != OBJECT else names[1:]


def link_row(templates: Sequence[Template]) -> Row | None:
    """Link the values; None if any value needs more than a path."""
    linked = [_value(template) for template in templates]
    values = [value for value in linked if value is not None]
    if len(values) < len(linked):
        return None

    def row(frame: Frame, spend: Spender) -> Values | None:
        row_values = []
        for value in values:
            part = value(frame, spend)
            if part is None:
                return None
            row_values.append(part)
        return row_values

    return row


def _value(template: Template) -> _Value | None:
    if type(template) is Whole:
        read = _text(template.variable.lookup)
        return None if read is None else lambda frame, _spend: read(frame)
    return _mixed(template) if type(template) is Mixed else None


def _mixed(template: Mixed) -> _Value | None:
    readers = [_text(variable.lookup, counts=True) for variable in template.variables]
    linked = [reader for reader in readers if reader is not None]
    if len(linked) < len(readers):
        return None
    head = template.texts[0]
    pairs = tuple(zip(linked, template.texts[1:], strict=True))

    def mixed(frame: Frame, spend: Spender) -> str | None:
        parts = [head]
        for reader, tail in pairs:
            part = reader(frame)
            if part is None:
                return None
            parts += part, tail
        charge_joining(spend, parts)
        joined = "".join(parts)
        # A result that contains a variable needs the general algorithm.
        return None if OPENING in joined else joined

    return mixed


def _text(lookup: Lookup, *, counts: bool = False) -> _Text | None:
    """Link one variable. ``counts``: the index of an element can be part of a string.

    A separate query for DELETE is ignored, because mutate rules do not use it.
    """
    names = path_of(lookup)
    if names is None:
        return None
    first, *path = names
    if first.startswith(_INDEX):
        if path or not counts:
            return None
        return lambda frame: str(frame[first]) if first in frame else None
    if first not in _ROOTS and not first.startswith(_ELEMENT):
        return None

    def text(frame: Frame) -> str | None:
        value = frame.get(first)
        for name in path:
            if type(value) is not dict:
                return None
            value = value.get(name)
        return value if type(value) is str else None

    return text


def path_of(lookup: Lookup) -> list[str] | None:
    """Return the names of a path; a path into the object starts with OBJECT."""
    names = None if lookup.node is None else field_names(lookup.node)
    # A query that contains this word first loads the object's images.
    if names is None or "images" in lookup.text:
        return None
    return [OBJECT, *names[2:]] if names[:2] == ["request", "object"] else names
