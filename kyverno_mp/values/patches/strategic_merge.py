"""Merge a strategic merge patch into an object like kustomize.

Room: values. Takes: an object, a patch without anchors. Gives: the merged object, which
shares all unchanged parts with the original. Next: program/mutate.
Source: docs/behaviour/engine 7.3; kyaml v0.21.1 (merge2, walk) with new list elements
in front.

kustomize walks the whole object, and in lists that are merged by key, elements with
repeated or missing keys are lost even if the patch does not mention the lists. This is
not reproduced: lists and elements that a patch does not name stay unchanged. Where
kustomize loses no element, the result is the same, including the order.
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same_paid
from kyverno_mp.values.patches.merge_keys import PLAIN, Shape, shape_of
from kyverno_mp.values.patches.merge_list import (
    ABSENT,
    Join,
    is_regular,
    merge_irregular,
    merge_scalars,
    parted,
    set_element,
    text_of,
)
from kyverno_mp.values.patches.node_kind import node_kind, wrong_kind
from kyverno_mp.values.spending import COPIED_PER_STEP, ENTRY_BYTES, FREE, Spender

_FIELD_STEPS: Final = 4
_ELEMENT_STEPS: Final = 3
_DIRECTIVE: Final = "$patch"
_DIRECTIVES: Final = ("delete", "replace", "merge")


def merge(
    resource: dict[str, Json], patch: Json, *, spend: Spender = FREE
) -> dict[str, Json]:
    """Merge a patch into an object; return the same object if nothing changes.

    ``spend``: charged for everything walked and copied.

    Raises: ExpressionFailed if a value is a map on one side and a list on the other,
    for an unknown ``$patch``, or if the patch deletes the whole object.
    """
    merged = _value(resource, patch, _shape_at(resource, patch), spend)
    if merged is ABSENT and patch is not None:
        # KYVERNO: a patch cannot delete the whole object (docs/behaviour/engine 7.3).
        raise ExpressionFailed("merge.delete", "filter cannot create or delete objects")
    return resource if merged is ABSENT else merged


def merge_value(dest: Json, origin: Json, shape: Shape, spend: Spender = FREE) -> Json:
    """Merge a part of a patch into the same part of an object.

    ``dest`` and the result may be ABSENT. Raises: as ``merge``.
    """
    return _value(dest, origin, shape, spend)


def _shape_at(dest: Json, origin: Json) -> Shape | None:
    for node in (dest, origin):
        if type(node) is dict:
            api_version, kind = node.get("apiVersion"), node.get("kind")
            if api_version and kind and type(kind) is type(api_version) is str:
                return shape_of(api_version, kind)
    return None


def _value(dest: Json, origin: Json, shape: Shape | None, spend: Spender) -> Json:
    """Merge a present ``origin`` into ``dest``, which may be absent or null."""
    if origin is None:
        return ABSENT
    if shape is None:
        # KYVERNO: an object of a known kind has its own schema, even inside an object
        # of an unknown kind.
        shape = _shape_at(dest, origin)
    kind = type(origin)
    if dest is ABSENT or dest is None:
        return _added(origin, shape, spend)
    if kind is dict:
        if type(dest) is not dict:
            raise wrong_kind(node_kind(dest), origin)
        return _map(dest, origin, shape, spend)
    if kind is list:
        if type(dest) is not list:
            raise wrong_kind(node_kind(dest), origin)
        if shape is None or shape.keys is None:
            return dest if same_paid(dest, origin, spend) else origin
        return _list(dest, origin, shape, spend)
    if type(dest) is dict or type(dest) is list:
        raise wrong_kind(node_kind(dest), origin)
    if type(dest) is str and type(origin) is not str:
        # KYVERNO: a value that replaces a quoted string is quoted, too, so it becomes a
        # string.
        origin = text_of(origin)
    return dest if same_paid(dest, origin, spend) else origin


def _map(
    dest: dict[str, Json],
    origin: dict[str, Json],
    shape: Shape | None,
    spend: Spender,
) -> Json:
    if _DIRECTIVE in origin:
        directive = _known(text_of(origin[_DIRECTIVE]))
        origin = _without_directive(origin)
        if directive == "delete":
            return ABSENT
        if directive == "replace":
            return _fields(origin, shape, spend)
    spend.charge(_FIELD_STEPS * len(origin) + len(dest) // COPIED_PER_STEP)
    out = dest
    for key, item in origin.items():
        old = dest.get(key, ABSENT)
        new = _value(old, item, _field(shape, key), spend)
        if new is old:
            continue
        if out is dest:
            out = dest.copy()
        if new is ABSENT:
            out.pop(key, None)
        else:
            out[key] = new
    return out


def _list(dest: list[Json], origin: list[Json], shape: Shape, spend: Spender) -> Json:
    assert shape.keys is not None
    origin, directive = _list_directive(origin)
    if directive == "delete":
        return ABSENT
    if directive == "replace":
        return _self_list(origin, shape, spend)
    if not shape.keys:
        merged = merge_scalars(dest, origin, spend)
    else:
        merged = _keyed(dest, origin, shape, spend)
    if len(merged) == len(dest) and all(
        new is old for new, old in zip(merged, dest, strict=True)
    ):
        return dest
    return merged


def _keyed(
    dest: list[Json], origin: list[Json], shape: Shape, spend: Spender
) -> list[Json]:
    assert shape.keys is not None
    elements = Shape(shape.fields)
    size = len(dest) + len(origin)
    spend.charge(_ELEMENT_STEPS * size)
    spend.charge_bytes(ENTRY_BYTES * size)

    def join(old: Json, new: Json) -> tuple[Json, bool]:
        return _join(old, new, elements, spend)

    if (
        len(shape.keys) > 1
        or not is_regular(dest, shape.keys[0])
        or not is_regular(origin, shape.keys[0])
    ):
        return _irregular(dest, origin, shape.keys, join, spend)
    # PERF: in nearly every list, each element of both sides has one unique key.
    key = shape.keys[0]
    by_key = {text_of(element[key]): element for element in dest}
    front: list[Json] = []
    for element in origin:
        old = by_key.pop(text_of(element[key]), ABSENT)
        merged, replaces = join(old, element)
        if merged is not ABSENT:
            front.append(merged if replaces else old)
    # KYVERNO: new elements and elements that the patch names come first.
    front.extend(by_key.values())
    return front


def _irregular(
    dest: list[Json],
    origin: list[Json],
    keys: tuple[str, ...],
    join: Join,
    spend: Spender,
) -> list[Json]:
    """Merge all elements like upstream, or only the named ones if others were lost."""
    size = len(dest) + len(origin)
    spend.charge(_ELEMENT_STEPS * size)
    spend.charge_bytes(ENTRY_BYTES * size)
    merged = merge_irregular(dest.copy(), origin.copy(), keys, join, spend)
    named, rest = parted(dest, origin, keys, spend)
    spend.charge(len(merged))
    survivors = set(map(id, merged))
    if all(id(element) in survivors for element in rest):
        return merged
    return merge_irregular(named, origin.copy(), keys, join, spend) + rest


def _join(old: Json, new: Json, shape: Shape, spend: Spender) -> tuple[Json, bool]:
    """Merge two elements with the same key; False if the old element stays unchanged.

    KYVERNO: ``$patch: replace`` in an element has no effect, because in the end the
    object's elements are merged over the patch's elements.
    """
    if new is ABSENT:
        return old, True
    if old is ABSENT:
        return _added(new, shape, spend), True
    merged = _value(old, new, shape, spend)
    is_replaced = text_of(new.get(_DIRECTIVE)) == "replace"
    return merged, not is_replaced


def _field(shape: Shape | None, key: str) -> Shape | None:
    return None if shape is None else shape.fields.get(key, PLAIN)


def _known(directive: str) -> str:
    if directive not in _DIRECTIVES:
        raise ExpressionFailed(
            "merge.directive", f"unknown patch strategy '{directive}'"
        )
    return directive


def _without_directive(origin: dict[str, Json]) -> dict[str, Json]:
    return {key: item for key, item in origin.items() if key != _DIRECTIVE}


def _added(origin: Json, shape: Shape | None, spend: Spender) -> Json:
    """Return the result of a patch value that is missing from the object.

    KYVERNO: here a list's directive is ignored, and an unknown directive is not an
    error.
    """
    if type(origin) is dict:
        directive = origin.get(_DIRECTIVE, ABSENT)
        if directive is not ABSENT:
            word = text_of(directive)
            if word == "delete":
                return ABSENT
            if word in _DIRECTIVES:
                origin = _without_directive(origin)
        return _fields(origin, shape, spend)
    if type(origin) is list and shape is not None and shape.keys is not None:
        return _self_list(origin, shape, spend)
    return origin


def _fields(
    origin: dict[str, Json], shape: Shape | None, spend: Spender
) -> dict[str, Json]:
    """Merge the fields of a new map with themselves."""
    spend.charge(_FIELD_STEPS * len(origin))
    spend.charge_bytes(ENTRY_BYTES * len(origin))
    out: dict[str, Json] = {}
    for key, item in origin.items():
        new = _itself(item, _field(shape, key), spend)
        if new is not ABSENT:
            out[key] = new
    return origin if len(out) == len(origin) and same_paid(origin, out, spend) else out


def _itself(origin: Json, shape: Shape | None, spend: Spender) -> Json:
    """Merge a value with itself: this removes nulls and applies directives."""
    if origin is None:
        return ABSENT
    if type(origin) is dict:
        if shape is None:
            shape = _shape_at(origin, ABSENT)
        if _DIRECTIVE in origin:
            if _known(text_of(origin[_DIRECTIVE])) == "delete":
                return ABSENT
            origin = _without_directive(origin)
        return _fields(origin, shape, spend)
    if type(origin) is list and shape is not None and shape.keys is not None:
        elements, word = _list_directive(origin)
        return ABSENT if word == "delete" else _self_list(elements, shape, spend)
    return origin


def _self_list(origin: list[Json], shape: Shape, spend: Spender) -> Json:
    assert shape.keys is not None
    if not shape.keys:
        return merge_scalars([], origin, spend)
    elements = Shape(shape.fields)
    content = origin.copy()
    return merge_irregular(
        content,
        content,
        shape.keys,
        lambda dest, _origin: (_itself(dest, elements, spend), True),
        spend,
    )


def _list_directive(origin: list[Json]) -> tuple[list[Json], str]:
    """Return the list without its directive element, and the directive."""
    for element in origin:
        if type(element) is dict and _DIRECTIVE in element:
            if len(element) > 1:
                break
            word = _known(text_of(element[_DIRECTIVE]))
            elements = origin.copy()
            set_element(elements, ABSENT, (_DIRECTIVE,), (word,))
            return elements, word
    return origin, "merge"
