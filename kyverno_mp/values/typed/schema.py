"""Look up the types of fields of built-in kinds, for merges of apply configurations.

Room: values. Takes: apiVersion and kind. Gives: Schemas, Atom, built_in. Next:
merge.py, custom.py.
May touch: built_in.txt, which ``python -m tests.unit.values.typed_schemas`` writes.
Source: structured-merge-diff schema/elements.go; Kubernetes OpenAPI v3, release 1.32,
as kubectl-validate embeds it (docs/behaviour/cel 10.1).

The file has one line per kind (group/version, kind, type) and one line per struct
(name, then ``field:type``; ``~`` before the name: atomic). A line that begins with a
space continues the line before it. A type is s, n, b (text, number, boolean), u (any
scalar), ? (deduced from the value), ! (atomic, of any type), =Name (a struct; ~Name
atomic, +Name granular here), []T (an atomic list), [*]T (a set), [key,key=default]T (a
list by keys; defaults in JSON), {}T or {~}T (a map, an atomic one).
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.values.jsonvalue import Json


class Key(NamedTuple):
    """A key of the elements of a list, and its default."""

    name: str
    default: Json = None


class ListType(NamedTuple):
    """A list; an associative list without ``keys`` is a set of scalars."""

    items: str
    is_atomic: bool = True
    keys: tuple[Key, ...] = ()


class MapType(NamedTuple):
    """A struct with ``fields``, or a map of ``items``; "" means no other keys."""

    fields: Mapping[str, str]
    items: str = ""
    is_atomic: bool = False


class Atom(NamedTuple):
    """The possible types of a value; ``scalar``: a type in ``_SCALARS``, or ""."""

    scalar: str = ""
    list: ListType | None = None
    map: MapType | None = None


_SCALARS: Final = {"s": "string", "n": "numeric", "b": "boolean", "u": "untyped"}
_NOTHING: Final[Mapping[str, str]] = {}
_ANY: Final = Atom("untyped", ListType("!"), MapType(_NOTHING, "?"))
_ANY_ATOMIC: Final = Atom(
    "untyped", ListType("!"), MapType(_NOTHING, "!", is_atomic=True)
)


class Schemas:
    """Types by notation: the built-in types, and structs of custom kinds."""

    __slots__ = ("_atoms", "_structs", "kinds", "versions")

    def __init__(
        self,
        kinds: Mapping[tuple[str, str], str],
        structs: Mapping[str, MapType],
    ) -> None:
        """Map (apiVersion, kind) to notations in ``kinds``, names to ``structs``."""
        self.kinds = kinds
        self.versions = frozenset(version for version, _ in kinds)
        self._structs = structs
        self._atoms: dict[str, Atom] = {}

    def atom(self, notation: str) -> Atom:
        """Return the type of a notation."""
        atom = self._atoms.get(notation)
        if atom is None:
            atom = self._atoms[notation] = self._read(notation)
        return atom

    def _read(self, notation: str) -> Atom:
        head = notation[0]
        if head in _SCALARS:
            return Atom(_SCALARS[head])
        if head in "?!":
            return _ANY if head == "?" else _ANY_ATOMIC
        if head == "[":
            keys, _, items = notation[1:].partition("]")
            if keys == "*":
                return Atom(list=ListType(items, is_atomic=False))
            listed = tuple(map(_key, keys.split(","))) if keys else ()
            return Atom(list=ListType(items, not listed, listed))
        if head == "{":
            inner, _, items = notation[1:].partition("}")
            return Atom(map=MapType(_NOTHING, items, inner == "~"))
        struct = self._structs[notation[1:]]
        if head != "=":
            struct = struct._replace(is_atomic=head == "~")
        return Atom(map=struct)

    def extended(
        self,
        kinds: Mapping[tuple[str, str], str],
        structs: Mapping[str, MapType],
        atoms: Mapping[str, Atom] | None = None,
    ) -> "Schemas":
        """Return these types and the types of custom kinds.

        ``atoms``: types whose notations, such as ``#1``, are only names.
        """
        schemas = Schemas({**self.kinds, **kinds}, {**self._structs, **structs})
        schemas._atoms.update(atoms or {})
        return schemas


def _key(notation: str) -> Key:
    name, equals, default = notation.partition("=")
    return Key(name, msgspec.json.decode(default) if equals else None)


@cache
def built_in() -> Schemas:
    """Return the types of the built-in kinds; parsing them once takes about 5 ms."""
    kinds: dict[tuple[str, str], str] = {}
    structs: dict[str, MapType] = {}
    table = Path(__file__).with_name("built_in.txt").read_text("utf-8")
    for line in table.replace("\n ", " ").splitlines():
        name, *fields = line.split(" ")
        if "/" in name:
            kinds[name.removeprefix("/"), fields[0]] = fields[1]
            continue
        bare = name.removeprefix("~")
        typed = (field.partition(":") for field in fields)
        structs[bare] = MapType(
            {key: notation for key, _, notation in typed}, is_atomic=bare != name
        )
    return Schemas(kinds, structs)
