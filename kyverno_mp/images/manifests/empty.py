"""Decide where an empty string, list or map differs from an absent field.

Room: images. Takes: paths of empty values and nulls. Gives: EmptyValues. Next:
images/manifests/compare.py.
Source: the Go types of the Kubernetes API: the API server drops and adds empty strings
only in fields of type string, never in lists or in maps whose keys users choose. It
drops empty lists and maps, but not empty structs.
"""

import re
from typing import Final, TypeAlias

from kyverno_mp.values.jsonvalue import Json

Path: TypeAlias = tuple[str | int, ...]
"""The names of fields and the indexes of list elements."""

_FIELD: Final = re.compile("[a-z][A-Za-z0-9]*")
_TYPED_GROUPS: Final = frozenset(
    (
        "",
        "admissionregistration.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "extensions",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
    )
)
"""The groups whose objects the API server decodes into Go types."""
_FREE: Final = frozenset(
    (
        "allocatable",
        "annotations",
        "attachmentMetadata",
        "attributes",
        "binaryData",
        "capacity",
        "data",
        "default",
        "defaultRequest",
        "deprecatedTopology",
        "hard",
        "labels",
        "limits",
        "matchLabels",
        "max",
        "maxLimitRequestRatio",
        "min",
        "nodeSelector",
        "options",
        "parameters",
        "podFixed",
        "raw",
        "requests",
        "selector",
        "stringData",
        "volumeAttributes",
    )
)
"""Maps in these groups whose keys users choose."""
_POINTERS: Final = frozenset(
    ("ingressClassName", "storageClassName", "volumeAttributesClassName")
)
"""Fields in which an empty string means "none", and absence means "the default"."""
_MAPS: Final = frozenset(
    (
        "binaryData",
        "data",
        "limits",
        "matchLabels",
        "nodeSelector",
        "requests",
        "stringData",
    )
)
"""Fields in these groups that are never structs, whose emptiness can have a meaning."""


class EmptyValues:
    """The empty values of one object."""

    def __init__(self, document: Json) -> None:
        fields = document if type(document) is dict else {}
        group, slash, _ = str(fields.get("apiVersion") or "").rpartition("/")
        self._is_typed = (group if slash else "") in _TYPED_GROUPS
        # A volume, unlike a claim, has no default class.
        self._has_pointers = fields.get("kind") != "PersistentVolume"

    def differ(self, path: Path, value: Json) -> bool:
        """Return whether ``value``, "" or null, at ``path`` differs from an absent one.

        SAFETY: if the type of a field is unknown, the empty string is a value. A null
        in a list or in such a map becomes an empty string.
        """
        if not path:
            return False
        name = path[-1]
        if isinstance(name, int) or not _FIELD.fullmatch(name):
            return True
        if not _FREE.isdisjoint(path[:-1]):
            return True
        if value is None:
            return False
        if not self._is_typed:
            return path[0] != "metadata"
        return self._has_pointers and name in _POINTERS

    def is_dropped(self, path: Path, value: Json) -> bool:
        """Return whether the API server drops an empty list or map at ``path``."""
        if not (self._is_typed and path) or not _FREE.isdisjoint(path[:-1]):
            return False
        name = path[-1]
        if type(value) is list:
            return isinstance(name, str)
        return type(value) is dict and name in _MAPS
