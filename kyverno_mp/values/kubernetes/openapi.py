"""Decode the schemas of the API server's OpenAPI v3 documents.

Room: values. Takes: the bytes of ``/openapi/v3`` and of the documents listed there.
Gives: Schema, Schemas of one group and version. Next: expr/cel/schema_types.py (types),
values/typed/custom.py (merges), egress/schemas.py (requests).
Source: Kubernetes OpenAPI v3; apiserver pkg/cel/openapi/resolver (references).

Only the parts that define the type of a field are kept, because most of a document is
descriptions.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.values.jsonvalue import Json

COMPONENTS: Final = "#/components/schemas/"


class GroupVersionKind(msgspec.Struct, frozen=True):
    """One entry of ``x-kubernetes-group-version-kind``."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Schema(msgspec.Struct, frozen=True):
    """The types of a schema; ``ref`` is "" if the schema defines them itself."""

    type: str | list[str] = ""
    format: str = ""
    properties: "dict[str, Schema]" = {}
    additional: "bool | Schema" = msgspec.field(
        name="additionalProperties", default=False
    )
    items: "Schema | list[Schema] | None" = None
    ref: str = msgspec.field(name="$ref", default="")
    all_of: "tuple[Schema, ...]" = msgspec.field(name="allOf", default=())
    int_or_string: bool = msgspec.field(
        name="x-kubernetes-int-or-string", default=False
    )
    embedded: bool = msgspec.field(name="x-kubernetes-embedded-resource", default=False)
    preserves_unknown: bool = msgspec.field(
        name="x-kubernetes-preserve-unknown-fields", default=False
    )
    list_type: str = msgspec.field(name="x-kubernetes-list-type", default="")
    list_map_keys: tuple[str, ...] = msgspec.field(
        name="x-kubernetes-list-map-keys", default=()
    )
    map_type: str = msgspec.field(name="x-kubernetes-map-type", default="")
    default: Json = None
    kinds: tuple[GroupVersionKind, ...] = msgspec.field(
        name="x-kubernetes-group-version-kind", default=()
    )

    @property
    def first_type(self) -> str:
        """Return ``type``, or the first type if ``type`` is a list."""
        if isinstance(self.type, str):
            return self.type
        return self.type[0] if self.type else ""

    @property
    def target(self) -> str:
        """The schema's reference; ``allOf`` wraps references with descriptions."""
        if self.ref:
            return self.ref
        return next((schema.target for schema in self.all_of if schema.target), "")


Schemas: TypeAlias = Mapping[str, Schema]
"""The schemas of one group and version, by their names in the document."""


class _Components(msgspec.Struct):
    schemas: dict[str, Schema] = {}


class _Document(msgspec.Struct):
    components: _Components = msgspec.field(default_factory=_Components)


_DOCUMENT = msgspec.json.Decoder(_Document)


class _Path(msgspec.Struct, rename="camel"):
    server_relative_url: str = msgspec.field(name="serverRelativeURL", default="")


class _Index(msgspec.Struct):
    paths: dict[str, _Path] = {}


_INDEX = msgspec.json.Decoder(_Index)


def read_index(body: bytes) -> dict[str, str]:
    """Return the URL of each path's document.

    Shape: ``{"apis/apps/v1": "/openapi/v3/apis/apps/v1?hash=0F.."}``; the hash changes
    with the document. Raises: RequestInvalid.
    """
    try:
        index = _INDEX.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(
            "openapi.index", "not a list of OpenAPI documents"
        ) from error
    return {
        path: document.server_relative_url for path, document in index.paths.items()
    }


def read_schemas(body: bytes) -> dict[str, Schema]:
    """Return the schemas of one document. Raises: RequestInvalid."""
    try:
        return _DOCUMENT.decode(body).components.schemas
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid("openapi.document", "no OpenAPI document") from error


def path_of(group: str, version: str) -> str:
    """Return the path that the index uses for a group and version."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def name_of(schemas: Schemas, group: str, version: str, kind: str) -> str:
    """Return the name of a kind's schema; "" if it has none."""
    identity = GroupVersionKind(group, version, kind)
    return next(
        (name for name, schema in schemas.items() if identity in schema.kinds), ""
    )
