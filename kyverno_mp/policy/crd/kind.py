"""Describe a kind of the API: names, versions, columns.

Room: policy. Takes: nothing. Gives: Kind, Version, Column. Next: the tables of kinds in
this folder; policy/crd/generate.py, which generates a CustomResourceDefinition for each
Kind.
Source: docs/behaviour/controllers 1.1; apiextensions/v1.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kyverno_mp.policy.crd.notation import Fields


class Column(NamedTuple):
    """One column of ``kubectl get``; a wide column is shown only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    is_wide: bool = False


class Version(NamedTuple):
    """One version; ``fields`` are siblings of apiVersion, kind and metadata.

    Fields that are derived from typed documents are a function, so that a run which
    reads one kind of policy derives only the fields of this kind.
    """

    name: str
    fields: Fields | Callable[[], Fields]
    is_storage: bool = False
    is_served: bool = True
    is_deprecated: bool = False
    columns: tuple[Column, ...] | None = None
    """Columns of only this version; None = the kind's columns."""

    def all_fields(self) -> Fields:
        """Return the fields."""
        return self.fields() if callable(self.fields) else self.fields


class Kind(NamedTuple):
    """One kind; ``plural`` is the resource's name in URLs and in RBAC."""

    group: str
    kind: str
    plural: str
    about: str
    is_namespaced: bool
    versions: tuple[Version, ...]
    columns: tuple[Column, ...] = ()
    short_name: str = ""
    is_in_category: bool = True
    has_status: bool = True
    selectable_fields: tuple[str, ...] = ()


def age(name: str) -> Column:
    """Return the column with the age of an object."""
    return Column(name, ".metadata.creationTimestamp", "date")


AGE: Final = age("AGE")
