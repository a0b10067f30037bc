"""Rewrite ``patchesJson6902`` as operations in CEL.

Room: cli. Takes: the text of a patch, the object it changes. Gives: a Part. Next:
mutate.py.
Source: docs/behaviour/engine 7.4 (adding creates missing parents); docs/behaviour/cel
10.1 (there it does not).
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.cli.fix.rewrite.objects import (
    Choice,
    Fields,
    Items,
    Part,
    Sum,
    change,
    operation,
    part_of,
    text_of,
)
from kyverno_mp.cli.fix.rewrite.query_values import Names, present
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.values.jsonvalue import Json

_OPERATIONS: Final = frozenset({"add", "replace", "remove"})
_END: Final = "-"


def json_patch(operations: Sequence[Json], root: Typed, names: Names) -> Part:
    """Return the operations as one list. Raises: NotRewritten."""
    parts = [_operation(item, root, names) for item in operations]
    if all(isinstance(part, Items) for part in parts):
        return Items(tuple(item for part in parts for item in part.parts))  # type: ignore[union-attr]
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def _operation(raw: Json, root: Typed, names: Names) -> Part:
    if type(raw) is not dict or raw.get("op") not in _OPERATIONS:
        raise NotRewritten(
            "a JSON patch with other operations than add, remove and replace"
        )
    name, pointer = raw["op"], raw.get("path")
    if type(pointer) is not str or not pointer.startswith("/"):
        raise NotRewritten("a JSON patch without a path")
    path = _pointer(pointer, names)
    if name == "remove":
        return _removal(pointer, path, root)
    if _is_filled(raw.get("value")):
        # KYVERNO: the patch is a text that is read after the value is in it: a
        # quotation mark or the end of a line changes more than the value.
        raise NotRewritten("a variable in the value of a JSON patch")
    value = part_of(raw.get("value"), names, _type_of(_tokens(pointer)))
    if name == "add":
        if "{{elementIndex}}" in pointer.replace(" ", ""):
            return _added_below(pointer, value, path, names)
        return added(pointer, value, root, path)
    tokens = _tokens(pointer)
    if not any(map(_is_index, tokens)) and _place(tokens, root).maybe:
        # KYVERNO: it is an error, which a MutatingPolicy does not deny.
        raise NotRewritten(f"a replaced field that can be missing, {pointer}")
    return Items((Fields("JSONPatch", change(name, path, value)),))


def _is_filled(value: Json) -> bool:
    """Return whether a value has a variable other than the index of an element."""
    if type(value) is str:
        return "{{" in value.replace(" ", "").replace("{{elementIndex}}", "")
    inner = value.values() if type(value) is dict else value
    return type(value) in (dict, list) and any(map(_is_filled, inner))


def _tokens(pointer: str) -> list[str]:
    return [
        item.replace("~1", "/").replace("~0", "~") for item in pointer.split("/")[1:]
    ]


def _pointer(pointer: str, names: Names) -> str:
    """Return the path as an expression."""
    return text_of(pointer, names) if "{{" in pointer else literal(pointer)


def _type_of(tokens: Sequence[str]) -> str:
    """Return the name of the type at a path, "" if it has none."""
    fields = [item for item in tokens if not _is_index(item)]
    is_plain = all(item.isidentifier() for item in fields)
    return ".".join(("Object", *fields)) if is_plain else ""


def _is_index(token: str) -> bool:
    return token == _END or token.lstrip("-").isdigit() or "{{" in token


def _removal(pointer: str, path: str, root: Typed) -> Part:
    own = Items((Fields("JSONPatch", change("remove", path)),))
    tokens = _tokens(pointer)
    if any(map(_is_index, tokens)):
        return own
    target = _place(tokens, root)
    return Choice(present(target), own, Items(())) if target.maybe else own


def _place(tokens: Sequence[str], root: Typed) -> Typed:
    for token in tokens:
        root = root.field(token)
    return root


def added(pointer: str, value: Part, root: Typed, path: str = "") -> Part:
    """Return ``add`` with the parents that may be missing.

    ``path``: the pointer as an expression, if it has variables.
    """
    own = Items((Fields("JSONPatch", change("add", path or literal(pointer), value)),))
    *parents, last = pointer.split("/")[1:]
    if any(map(_is_index, parents)):
        raise NotRewritten("an added field of an element of a list")
    additions: list[Part] = []
    for number in range(1, len(parents) + 1):
        above = "/" + "/".join(parents[:number])
        target = _place(_tokens(above), root)
        if not target.maybe:
            continue
        if number == len(parents) and _is_index(last):
            whole = operation("add", above, Items((value,)))
            return _together(additions, Choice(present(target), own, whole))
        addition = operation("add", above, Fields("", ()))
        additions.append(Choice(present(target), Items(()), addition))
    return _together(additions, own)


def _added_below(pointer: str, value: Part, path: str, names: Names) -> Part:
    """Return ``add`` of a field of the element of ``foreach``."""
    element = names.get("element")
    *above, last = pointer.rpartition("}}/")[2].split("/")
    own = Items((Fields("JSONPatch", change("add", path, value)),))
    if pointer.endswith("}}"):
        return own
    if not isinstance(element, Typed) or "{{" in last or len(above) > 1:
        raise NotRewritten("an added field of an element")
    target = _place(above, element)
    if not above or not target.maybe:
        return own
    if not _is_index(last):
        raise NotRewritten("an added field of an element")
    list_path = _pointer(pointer.rpartition("/")[0], names)
    whole = Items((Fields("JSONPatch", change("add", list_path, Items((value,)))),))
    return Choice(present(target), own, whole)


def _together(additions: list[Part], own: Part) -> Part:
    return Sum((*additions, own)) if additions else own
