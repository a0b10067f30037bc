"""Read the types of custom kinds, for merges of apply configurations.

Room: values. Takes: schemas of an OpenAPI document of the API server, or a
CustomResourceDefinition. Gives: Schemas, with the built-in types and the kind's types.
Next: merge.py; egress/types.py reads documents.
Source: kube-openapi schemaconv/{openapi,smd}.go (lists by x-kubernetes-list-type, maps
by x-kubernetes-map-type, x-kubernetes-preserve-unknown-fields).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.openapi import Schema, name_of
from kyverno_mp.values.records import RecordType
from kyverno_mp.values.typed.schema import (
    Atom,
    Key,
    ListType,
    MapType,
    Schemas,
    built_in,
)

_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_RAW: Final = "io.k8s.apimachinery.pkg.runtime.RawExtension"
_META: Final = "=meta.v1.ObjectMeta"
_SCALARS: Final = {"integer": "n", "number": "n", "boolean": "b"}
_DEDUCED: Final = "?"
_UNTYPED: Final = "!"
_ATOMIC: Final = "atomic"
_SCHEMA: Final = RecordType(Schema)


def types_of(models: Mapping[str, Schema], api_version: str, kind: str) -> Schemas:
    """Return the built-in types and, if the document has the kind, the kind's types.

    Raises: RequestInvalid for a document that is nested too deeply.
    """
    group, _, version = api_version.rpartition("/")
    name = name_of(models, group, version, kind)
    if not name:
        return built_in()
    reader = _Reader(models)
    try:
        notation = reader.named(name)
        reader.finish()
    except RecursionError as error:
        raise RequestInvalid(
            "openapi.document", f"schema of {kind}: nested too deeply"
        ) from error
    return built_in().extended({(api_version, kind): notation}, {}, reader.atoms)


def types_of_definitions(definitions: list[Json]) -> Schemas:
    """Return the built-in types and the types of CustomResourceDefinitions.

    Raises: RequestInvalid for an invalid schema.
    """
    kinds: dict[tuple[str, str], str] = {}
    reader = _Reader({})
    for raw in definitions:
        spec = raw["spec"]
        kind = spec["names"]["kind"]
        for version in spec.get("versions") or ():
            raw_schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            api_version = f"{spec['group']}/{version['name']}"
            notation = f"#{api_version}/{kind}"
            try:
                schema = _SCHEMA.convert(raw_schema)
                reader.root(notation, schema)
            except (msgspec.ValidationError, RecursionError) as error:
                raise RequestInvalid("openapi.document", f"{kind}: {error}") from error
            kinds[api_version, kind] = notation
    reader.finish()
    return built_in().extended(kinds, {}, reader.atoms)


class _Reader:
    """Converts each schema to an Atom, whose notation is ``#`` and a name."""

    def __init__(self, models: Mapping[str, Schema]) -> None:
        self._models = models
        self.atoms: dict[str, Atom] = {}
        self._overridden: list[tuple[str, str, bool]] = []
        """The notations of references that override how their maps merge."""

    def named(self, name: str) -> str:
        """Return the notation of a model; models can be recursive."""
        if name == _QUANTITY:
            return "u"
        model = self._models.get(name)
        if name == _RAW or model is None:
            return _UNTYPED
        notation = f"#{name}"
        if notation not in self.atoms:
            self.atoms[notation] = Atom("untyped")
            self.atoms[notation] = self._atom(model, preserves=False)
        return notation

    def root(self, notation: str, schema: Schema) -> None:
        """Read a definition's schema, and add the fields that every object has."""
        atom = self._atom(schema, preserves=False)
        fields = dict(atom.map.fields) if atom.map is not None else {}
        of_all = {"apiVersion": "s", "kind": "s", "metadata": _META}
        items = _DEDUCED if atom.map is None else atom.map.items
        self.atoms[notation] = Atom(map=MapType({**fields, **of_all}, items))

    def finish(self) -> None:
        """Create the types of references, after their targets are complete."""
        for notation, base, is_atomic in self._overridden:
            atom = self.atoms[base]
            if atom.map is not None:
                atom = atom._replace(map=atom.map._replace(is_atomic=is_atomic))
            self.atoms[notation] = atom
        self._overridden.clear()

    def _reference(self, schema: Schema, *, preserves: bool) -> str:
        target = schema.target.rpartition("/")[2]
        if target:
            notation = self.named(target)
            if not schema.map_type or not notation.startswith("#"):
                return notation
            override = f"{notation}#{schema.map_type}"
            self._overridden.append((override, notation, schema.map_type == _ATOMIC))
            return override
        plain = _scalar(schema)
        if plain:
            return plain
        notation = f"#{len(self.atoms)}"
        self.atoms[notation] = Atom()
        self.atoms[notation] = self._atom(schema, preserves=preserves)
        return notation

    def _atom(self, schema: Schema, *, preserves: bool) -> Atom:
        preserves = preserves or schema.preserves_unknown
        kind = schema.first_type
        if kind == "array":
            return Atom(list=self._list(schema, preserves=preserves))
        if kind == "object":
            return Atom(map=self._map(schema, preserves=preserves))
        if kind:
            return built_in().atom(_scalar(schema))
        return Atom(
            "untyped",
            self._list(schema, preserves=preserves),
            self._map(schema, preserves=preserves),
        )

    def _map(self, schema: Schema, *, preserves: bool) -> MapType:
        fields = {
            name: self._reference(property_schema, preserves=preserves)
            for name, property_schema in schema.properties.items()
        }
        additional = schema.additional
        items = ""
        if isinstance(additional, Schema):
            items = self._reference(additional, preserves=preserves)
        elif additional or preserves or not fields:
            # K8S: structural schemas forbid ``additionalProperties: false``.
            items = _DEDUCED
        return MapType(fields, items, schema.map_type == _ATOMIC)

    def _list(self, schema: Schema, *, preserves: bool) -> ListType:
        item_schema = schema.items
        if not isinstance(item_schema, Schema):
            return ListType(_UNTYPED)
        items = self._reference(item_schema, preserves=preserves)
        if schema.list_type == "set":
            return ListType(items, is_atomic=False)
        if schema.list_type != "map":
            return ListType(items)
        model = self._models.get(item_schema.target.rpartition("/")[2], item_schema)
        keys = tuple(
            Key(
                name,
                model.properties[name].default if name in model.properties else None,
            )
            for name in schema.list_map_keys
        )
        return ListType(items, is_atomic=False, keys=keys)


def _scalar(schema: Schema) -> str:
    """Return the notation of a scalar; "" for other types."""
    kind = schema.first_type
    if kind == "string":
        return "s" if schema.format in ("", "byte") else "u"
    if kind in ("", "array", "object"):
        return ""
    return _SCALARS.get(kind, "u")
