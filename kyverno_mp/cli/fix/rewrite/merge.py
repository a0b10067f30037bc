"""Rewrite ``patchStrategicMerge`` as an apply configuration and a JSON patch.

Room: cli. Takes: a patch, the object it changes. Gives: conditions, the fields of the
configuration, the operations. Next: mutate.py.
Source: docs/behaviour/engine 7.3; docs/behaviour/cel 10.1; Kubernetes' types.

What an apply configuration cannot change (atomic maps and lists, deletions, values that
must not replace others) becomes a JSON patch.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.json_patches import added
from kyverno_mp.cli.fix.rewrite.objects import (
    Choice,
    Each,
    Fields,
    Items,
    Part,
    change,
    operation,
    part_of,
    scalar_of,
)
from kyverno_mp.cli.fix.rewrite.pattern import pattern_expression
from kyverno_mp.cli.fix.rewrite.query_values import Names, present
from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    all_of,
    is_name,
    literal,
)
from kyverno_mp.cli.fix.rewrite.typed import Typed, name_for
from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.typed.schema import Atom, built_in

_ADD: Final = "+"
_GLOBAL: Final = "<"
_NAME: Final = "name"
_ANYTHING: Final = frozenset({"*", "?*"})
_NOTHING: Final[Part] = Items(())


class Element(NamedTuple):
    """The element of a ``foreach``: its name in CEL, and the list that has it."""

    variable: str
    lists: tuple[str, ...]
    filters: str = "true"


class Merge:
    """The parts of one patch."""

    def __init__(
        self, root: Typed, names: Names, element: Element | None = None
    ) -> None:
        self._root = root
        self._names = names
        self._element = element
        self.conditions: list[str] = []
        self.operations: list[Part] = []
        self.uses_element = False

    def fields(
        self, patch: Mapping[str, Json], holder: Typed, path: str, pointer: str
    ) -> tuple[tuple[str, Part], ...]:
        """Return the fields of the configuration at ``path``. Raises: NotRewritten."""
        result: list[tuple[str, Part]] = []
        for source, value in patch.items():
            modifier, key = _anchored(source)
            child = holder.field(key)
            if modifier == _ADD:
                part = self._added(value, child, f"{path}.{key}", below(pointer, key))
            elif modifier is None:
                part = self._merged(value, child, f"{path}.{key}", below(pointer, key))
            else:
                self.conditions.append(self._condition(key, value, holder))
                continue
            if part is not None:
                result.append((_field_name(key, holder), part))
        return tuple(result)

    def _condition(self, key: str, value: Json, holder: Typed) -> str:
        if _has_anchors(value):
            raise NotRewritten("anchors in the value of an anchor")
        if type(value) is str and "{{" in value:
            raise NotRewritten("variables in an anchor")
        test = pattern_expression({key: value}, holder)
        return all_of((present(holder), test)) if holder.maybe else test

    def _added(self, value: Json, child: Typed, path: str, pointer: str) -> Part | None:
        """Return the value of ``+(key)``, which replaces nothing."""
        if type(value) in (dict, list) or _is_atomic(child):
            if not child.maybe:
                return None
            whole = part_of(_without_anchors(value), self._names, path)
            self.operations.append(
                self._if_present(child, _NOTHING, added(pointer, whole, self._root))
            )
            return None
        return child.default(scalar_of(value, self._names))

    def _merged(
        self, value: Json, child: Typed, path: str, pointer: str
    ) -> Part | None:
        if value is None:
            removal = operation("remove", pointer)
            self.operations.append(self._if_present(child, removal, _NOTHING))
            return None
        if type(value) is dict:
            return self._map(value, child, path, pointer)
        if type(value) is list:
            return self._list(value, child, path, pointer)
        return scalar_of(value, self._names)

    def _map(
        self, value: dict[str, Json], child: Typed, path: str, pointer: str
    ) -> Part | None:
        if any("$patch" in key for key in value):
            raise NotRewritten("$patch")
        atoms = _atoms(child)
        if any(atom.map is None for atom in atoms):
            raise NotRewritten(f"a map where {path} is none")
        if any(atom.map and atom.map.is_atomic for atom in atoms):
            self._replaced(value, child, path, pointer)
            return None
        is_struct = all(atom.map and atom.map.fields for atom in atoms)
        inner = self.fields(value, child, path, pointer)
        if not inner and value:
            return None
        return Fields(path if is_struct else "", inner)

    def _replaced(
        self, value: dict[str, Json], child: Typed, path: str, pointer: str
    ) -> None:
        """Add operations for the keys of a map that a configuration cannot change."""
        if _has_anchors(value) or any(
            type(item) in (dict, type(None)) for item in value.values()
        ):
            raise NotRewritten(f"anchors or maps in {path}")
        keys = tuple(
            Fields(
                "JSONPatch",
                change("add", literal(below(pointer, key)), part_of(item, self._names)),
            )
            for key, item in value.items()
        )
        whole = part_of(value, self._names)
        self.operations.append(
            self._if_present(child, Items(keys), added(pointer, whole, self._root))
        )

    def _list(
        self, value: list[Json], child: Typed, path: str, pointer: str
    ) -> Part | None:
        atoms = _atoms(child)
        if any(atom.list is None for atom in atoms):
            raise NotRewritten(f"a list where {path} is none")
        if any(atom.list and atom.list.is_atomic for atom in atoms):
            if _has_anchors(value):
                raise NotRewritten(f"anchors in {path}")
            whole = part_of(value, self._names, path)
            self.operations.append(added(pointer, whole, self._root))
            return None
        parts = [self._elements(item, child, path, pointer) for item in value]
        parts = [part for part in parts if part is not None]
        if not parts:
            return None
        if all(isinstance(part, Items) for part in parts):
            return Items(tuple(item for part in parts for item in part.parts))  # type: ignore[union-attr]
        if len(parts) > 1:
            raise NotRewritten(f"several kinds of elements in {path}")
        return parts[0]

    def _elements(
        self, value: Json, child: Typed, path: str, pointer: str
    ) -> Part | None:
        """Return the list of the elements that one element of the patch describes."""
        if type(value) is not dict:
            return Items((scalar_of(value, self._names),))
        anchors = {key: _anchored(key)[0] for key in value}
        is_of_element = self._is_of_element(value, path)
        if set(anchors.values()) <= {None} and not is_of_element:
            # A new element, or an existing one of the same key.
            return self._new(value, child, path, pointer)
        if _GLOBAL in anchors.values():
            self._global(value, child, path)
            return None
        return self._each(value, child, path, is_of_element=is_of_element)

    def _new(
        self, value: dict[str, Json], child: Typed, path: str, pointer: str
    ) -> Part | None:
        """Return a list with an element, which can exist already."""
        if _has_anchors(value):
            raise NotRewritten(f"anchors in an element of {path}")
        element = child.element("x")
        if not any(atom.map and atom.map.is_atomic for atom in _atoms(element)):
            merge = Merge(self._root, self._names)
            fields = merge.fields(value, element, path, "")
            if merge.operations:
                raise NotRewritten(f"atomic fields in elements of {path}")
            return Items((Fields(path, fields),))
        if [*value] != [_NAME]:
            raise NotRewritten(f"an atomic element of {path}")
        name = name_for(child.plain, "x")
        own = scalar_of(value[_NAME], self._names)
        is_same = f"{name}.?{_NAME} == optional.of({own})"
        exists = f"{child.default('[]')}.exists({name}, {is_same})"
        whole = part_of(value, self._names, path)
        addition = added(f"{pointer}/0", whole, self._root)
        self.operations.append(Choice(exists, _NOTHING, addition))
        return None

    def _global(self, value: dict[str, Json], child: Typed, path: str) -> None:
        """Add the condition that an element has what global anchors require."""
        if any(_anchored(key)[0] != _GLOBAL for key in value):
            raise NotRewritten(f"a global anchor beside fields in {path}")
        name = name_for(child.plain, "x")
        element = child.element(name)
        tests = [
            self._condition(_anchored(key)[1], item, element)
            for key, item in value.items()
        ]
        items = child.default("[]")
        # KYVERNO: an empty list meets them, a missing one does not.
        test = f"({items}.size() == 0 || {items}.exists({name}, {all_of(tests)}))"
        self.conditions.append(all_of((present(child), test)) if child.maybe else test)

    def _each(
        self, value: dict[str, Json], child: Typed, path: str, *, is_of_element: bool
    ) -> Part:
        """Return the changed elements of a list, with their names."""
        name = name_for(child.plain, "x")
        element = child.element(name)
        names = self._names
        tests = []
        if is_of_element:
            assert self._element is not None
            self.uses_element = True
            names = {**names, "element": element}
            tests.append(self._element.filters)
        rest: dict[str, Json] = {}
        for source, item in value.items():
            modifier, key = _anchored(source)
            if is_of_element and key == _NAME:
                continue
            if modifier == "":
                if not (key == _NAME and item in _ANYTHING):
                    tests.append(self._condition(key, item, element))
            elif not (modifier is None and key == _NAME):
                rest[source] = item
        inner = Merge(self._root, names)
        fields = inner.fields(rest, element, path, "")
        if inner.operations or inner.conditions:
            raise NotRewritten(f"fields in elements of {path}")
        test = all_of(tests)
        items = child.default("[]")
        if test != "true":
            items += f".filter({name}, {test})"
        return Each(
            f"{items}.map", name, Fields(path, ((_NAME, f"{name}.{_NAME}"), *fields))
        )

    def _is_of_element(self, value: dict[str, Json], path: str) -> bool:
        if self._element is None or path.rpartition(".")[2] not in self._element.lists:
            return False
        keys = {_anchored(key)[1]: item for key, item in value.items()}
        name = str(keys.get(_NAME, "")).replace(" ", "")
        return name == "{{element.name}}"

    def _if_present(self, child: Typed, then: Part, other: Part) -> Part:
        """Return a choice by whether a field is present."""
        if not child.maybe:
            return then
        return Choice(present(child), then, other)


def below(pointer: str, key: str) -> str:
    """Return the pointer to a field."""
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def _field_name(key: str, holder: Typed) -> str:
    atoms = _atoms(holder)
    if all(atom.map and atom.map.fields for atom in atoms) and not is_name(key):
        raise NotRewritten(f"the field {key}")
    return literal(key) if any(a.map and not a.map.fields for a in atoms) else key


def _atoms(value: Typed) -> list[Atom]:
    """Return the types of a value. Raises: NotRewritten if they are not known."""
    if not value.notations:
        raise NotRewritten(f"a patch of {value.plain}, whose type is not known")
    return [built_in().atom(notation) for notation in value.notations]


def _is_atomic(value: Typed) -> bool:
    return any(
        (atom.map is not None and atom.map.is_atomic) or atom.list is not None
        for atom in _atoms(value)
    )


def _anchored(source: str) -> tuple[str | None, str]:
    """Return the modifier of an anchor, None without one, and the key."""
    anchor = parse_anchor(source)
    if anchor is None:
        return None, source
    modifier, key = anchor
    if modifier not in (_ADD, _GLOBAL, ""):
        raise NotRewritten(f"anchor {source}")
    return modifier, key


def _keys_in(value: Json) -> Iterator[str]:
    if type(value) is dict:
        for key, item in value.items():
            yield key
            yield from _keys_in(item)
    elif type(value) is list:
        for item in value:
            yield from _keys_in(item)


def _has_anchors(value: Json) -> bool:
    return any(parse_anchor(key) is not None for key in _keys_in(value) if key.strip())


def _without_anchors(value: Json) -> Json:
    """Return a value whose ``+(key)`` are keys. Raises: NotRewritten for others."""
    if type(value) is dict:
        result = {}
        for source, item in value.items():
            modifier, key = _anchored(source)
            if modifier not in (None, _ADD):
                raise NotRewritten(f"anchor {source} below +(key)")
            result[key] = _without_anchors(item)
        return result
    return [*map(_without_anchors, value)] if type(value) is list else value
