"""Know the types of an object's fields, and which fields are always present.

Room: cli. Takes: resources. Gives: Typed values, whether a generated object conforms.
Next: jmespath.py, inputs.py.
Source: Kubernetes' types (values/typed/schema.py). The API server calls webhooks with
objects of these types, so that a policy needs no tests for them.
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.texts import field as selected
from kyverno_mp.cli.fix.rewrite.texts import literal
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.typed.schema import Atom, MapType, Schemas
from kyverno_mp.values.typed.schema import built_in as stored_types

_PRESENT: Final = frozenset(
    {"metadata", "spec", "template", "jobTemplate", "containers", "verbs"}
)
"""Fields that Kubernetes writes even if they are empty, where a type has them."""
_WRITTEN: Final[dict[str, Json]] = {"containers": [{"name": "c"}], "verbs": ["get"]}
_COMPLETED: Final = True
"""The value of a field that will be completed: not empty."""
_NAMES: Final = frozenset(
    (
        *("apiVersion", "clusterIP", "kind", "name", "namespace", "priorityClassName"),
        *("restartPolicy", "serviceAccountName", "storageClassName", "topologyKey"),
        *("type", "uid"),
    )
)
"""Fields whose values Kubernetes restricts to names, without wildcards."""
_LABELS: Final = frozenset({"labels", "matchLabels"})
"""Maps whose values Kubernetes restricts as well."""
_CONFIG_MAP: Final = Resource("", "v1", "configmaps", "ConfigMap")
_NULLABLE: Final = frozenset(
    {
        *("ClusterRole.rules", "CSINodeSpec.drivers", "EndpointSlice.endpoints"),
        *("EndpointSlice.ports", "LimitRangeSpec.limits", "Role.rules"),
        "ProjectedVolumeSource.sources",
    }
)
"""Lists that Kubernetes writes as null if they are empty: Go's types have them without
``omitempty``, and the API server does not require an entry."""
_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("containers", "ephemeralContainers", "imagePullSecrets"),
            *("initContainers", "env", "volumes"),
        ),
        "name",
    ),
    "volumeMounts": "mountPath",
}
"""Lists whose elements have a key -> the key. Kubernetes accepts equal names in two of
them (env, imagePullSecrets), where the last one counts, or either."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_UNKNOWN: Final = frozenset({"", "?", "!"})
_SCALARS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "numeric": (int, float),
    "boolean": (bool,),
}


_STREAMS: Final = {
    "apiVersion": "s",
    "kind": "s",
    **dict.fromkeys(("stdin", "stdout", "stderr", "tty"), "b"),
    "container": "s",
}
_OPTIONS: Final = {
    "PodAttachOptions": _STREAMS,
    "PodExecOptions": {**_STREAMS, "command": "[]s"},
    "PodPortForwardOptions": {"apiVersion": "s", "kind": "s", "ports": "[]n"},
}
"""Kinds of requests for connections, which no OpenAPI document has -> their fields.
Source: k8s.io/api core/v1 types.go."""
_SINGULAR: Final = {
    "containers": "container",
    "initContainers": "container",
    "ephemeralContainers": "container",
    "rules": "rule",
    "verbs": "verb",
    "paths": "path",
    "hosts": "host",
    "volumes": "volume",
    "ports": "port",
    "resources": "resource",
}


class Typed(NamedTuple):
    """A value of the object.

    ``plain``: an expression, an error if a field is missing; ``maybe``: an optional,
    "" if the value is always present. ``notations``: its types in the kinds that the
    rule matches, () if one is not known.
    """

    plain: str
    maybe: str = ""
    notations: tuple[str, ...] = ()
    is_name: bool = False

    @property
    def kind(self) -> str:
        """The name of the type: a scalar's, list or map; "" if it is not known."""
        found = {_kind_of(notation) for notation in self.notations}
        return found.pop() if len(found) == 1 else ""

    def field(self, key: str) -> "Typed":
        """Return a field of a map."""
        maps = [built_in().atom(notation).map for notation in self.notations]
        found = [
            "" if one is None else one.fields.get(key) or one.items for one in maps
        ]
        is_written = key in _PRESENT and all(
            one is not None and key in one.fields for one in maps
        )
        plain = selected(self.plain, key)
        notations = _known(found)
        nullable = [_is_nullable(notation, key) for notation in self.notations]
        if any(nullable) and not (all(nullable) and not self.maybe):
            notations = ()
        elif any(nullable):
            # Null has no elements, as a missing list.
            listed = f"{self.plain}.?{key}.orValue([])"
            return Typed(plain, f"optional.ofNonZeroValue({listed})", notations)
        if is_written and maps and not self.maybe:
            return Typed(plain, "", notations)
        holder = self.maybe or self.plain
        is_word = plain.endswith(f".{key}")
        maybe = f"{holder}.?{key}" if is_word else f"{holder}[?{literal(key)}]"
        return Typed(plain, maybe, notations, key in _NAMES)

    def at(self, position: int) -> "Typed":
        """Return the element of a list at a position, if the list is present."""
        lists = [built_in().atom(notation).list for notation in self.notations]
        found = ["" if one is None else one.items for one in lists]
        plain = f"{self.plain}[{position}]"
        return Typed(plain, f"{self.plain}[?{position}]", _known(found))

    def element(self, name: str) -> "Typed":
        """Return an element of a list, which is bound to a name."""
        lists = [built_in().atom(notation).list for notation in self.notations]
        found = ["" if one is None else one.items for one in lists]
        return Typed(name, "", _known(found))

    def default(self, value: str) -> str:
        """Return an expression with a default for a missing value."""
        return f"{self.maybe}.orValue({value})" if self.maybe else self.plain


@cache
def built_in() -> Schemas:
    """Return the types of the objects in requests for built-in kinds."""
    return stored_types().extended(
        {("v1", kind): f"={kind}" for kind in _OPTIONS},
        {kind: MapType(fields) for kind, fields in _OPTIONS.items()},
    )


def name_for(plain: str, other: str) -> str:
    """Return a name for the elements of a list."""
    if plain.startswith("("):
        # Several lists that were joined.
        return "container" if "ontainers" in plain else other
    return _SINGULAR.get(plain.rpartition(".")[2], other)


def _is_nullable(notation: str, key: str) -> bool:
    return f"{notation.rpartition('.')[2]}.{key}" in _NULLABLE


def _known(notations: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(notations))
    return () if set(found) & _UNKNOWN else found


def _kind_of(notation: str) -> str:
    atom = built_in().atom(notation)
    return "list" if atom.list else "map" if atom.map else atom.scalar


def root_of(resources: Iterable[Resource], plain: str) -> Typed:
    """Return the object of a rule that matches these resources."""
    return Typed(plain, "", _known(map(_notation, resources)))


@cache
def _notation(resource: Resource) -> str:
    group = resource.home if resource.group == "*" else resource.group
    versions = [
        notation
        for version, notation in _versions_of(resource.kind)
        if version.rpartition("/")[0] == group
        and resource.version in ("*", version.rpartition("/")[2])
    ]
    return versions[0] if versions else ""


@cache
def _versions_of(kind: str) -> tuple[tuple[str, str], ...]:
    kinds = built_in().kinds.items()
    return tuple(
        (version, notation) for (version, name), notation in kinds if name == kind
    )


@cache
def _metadata() -> str:
    fields = built_in().atom(_notation(_CONFIG_MAP)).map
    assert fields is not None
    return fields.fields["metadata"]


def conforms(resource: Resource, value: Json) -> bool:
    """Return whether the API server could call a webhook with this object."""
    notation = _notation(resource)
    return not notation or _has_type(value, notation, absent=None)


def stored(resource: Resource, value: Json, *, exactly: bool = False) -> Json | None:
    """Return the completed object; None if the API server would not have it.

    ``exactly``: it stores it as well: no unknown fields, no elements of the same name.
    """
    notation = _notation(resource)
    if not notation:
        # K8S: metadata has the same type in all kinds.
        metadata = value.get("metadata", {}) if type(value) is dict else {}
        return value if _has_type(metadata, _metadata(), absent=None) else None
    # PERF: most objects fail, and are not completed first.
    if not _has_type(value, notation, absent=_COMPLETED):
        return None
    whole = _completed(value, notation)
    return whole if not exactly or _is_exact(whole, notation) else None


def _is_exact(value: Json, notation: str, key: str = "") -> bool:
    if notation in ("?", "!"):
        return True
    atom = built_in().atom(notation)
    if type(value) is list and atom.list is not None:
        name = _KEYS.get(key, "")
        names = [one.get(name) for one in value if type(one) is dict]
        is_named = not name or (
            all(_is_key(one, name) for one in names) and len({*names}) == len(names)
        )
        items = atom.list.items
        return is_named and all(_is_exact(one, items) for one in value)
    if type(value) is not dict or atom.map is None:
        return True
    fields, items = atom.map.fields, atom.map.items
    return all(
        bool(fields.get(name) or items)
        and _is_exact(inner, fields.get(name) or items, name)
        for name, inner in value.items()
    )


def _has_type(value: Json, notation: str, key: str = "", *, absent: Json) -> bool:
    """Return whether the types are right. ``absent``: a missing field's value."""
    if notation in ("?", "!"):
        return True
    atom = built_in().atom(notation)
    if atom.list is not None:
        items = atom.list.items
        return type(value) is list and all(
            _has_type(one, items, absent=absent) for one in value
        )
    if atom.map is not None:
        is_valid = type(value) is dict and (key not in _LABELS or _are_labels(value))
        return is_valid and _has_fields(value, atom, notation, absent)
    if atom.scalar == "untyped":
        return type(value) in (str, int)
    is_plain = type(value) is not str or not set(value) & set("*?")
    return type(value) in _SCALARS[atom.scalar] and (is_plain or key not in _NAMES)


def _are_labels(value: dict[str, Json]) -> bool:
    return all(
        type(one) is not str or not one or _NAME.fullmatch(one)
        for one in value.values()
    )


def _has_fields(value: dict[str, Json], atom: Atom, owner: str, absent: Json) -> bool:
    assert atom.map is not None
    fields = atom.map.fields
    for key in _WRITTEN:
        if key in fields and not value.get(key, absent):
            return False
    for key, inner in value.items():
        notation = fields.get(key, atom.map.items)
        if inner is None and _is_nullable(owner, key):
            continue
        if notation and not _has_type(inner, notation, key, absent=absent):
            return False
    return True


def completed(resource: Resource, value: Json) -> Json:
    """Return the object with the fields that Kubernetes always writes."""
    notation = _notation(resource)
    return _completed(value, notation) if notation else value


def with_names(value: Json, key: str = "") -> Json:
    """Return the object whose elements have the keys that Kubernetes requires."""
    if type(value) is dict:
        return {name: with_names(one, name) for name, one in value.items()}
    if type(value) is not list:
        return value
    items = [with_names(one) for one in value]
    taken: set[Json] = set()
    field = _KEYS.get(key, "")
    for number, one in enumerate(items if field else ()):
        if type(one) is dict:
            if not _is_key(one.get(field), field) or one[field] in taken:
                one[field] = f"{key[0]}{number}"
            taken.add(one[field])
    return items


def _is_key(value: Json, field: str) -> bool:
    """Return whether Kubernetes accepts a value in a field that is a list's key."""
    if type(value) is not str:
        return False
    return bool(_NAME.fullmatch(value) if field == "name" else value)


def _completed(value: Json, notation: str) -> Json:
    if notation in ("?", "!"):
        return value
    atom = built_in().atom(notation)
    if type(value) is list and atom.list is not None:
        return [_completed(one, atom.list.items) for one in value]
    if type(value) is not dict or atom.map is None:
        return value
    fields = atom.map.fields
    empty = {
        key: deepcopy(_WRITTEN.get(key, {}))
        for key in _always(notation)
        if key not in value
    }
    return {
        key: _completed(inner, fields[key])
        if type(inner) in (dict, list) and key in fields
        else inner
        for key, inner in {**value, **empty}.items()
    }


@cache
def _always(notation: str) -> tuple[str, ...]:
    """Return the fields of a type that Kubernetes always writes."""
    atom = built_in().atom(notation)
    return tuple(sorted(_PRESENT & atom.map.fields.keys())) if atom.map else ()
