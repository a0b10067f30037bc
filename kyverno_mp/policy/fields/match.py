"""Declare match and exclude: filters for resources and users.

Room: policy. Takes: nothing. Gives: MatchResources (with the deprecated inline form)
and MatchFilters (any/all only). Next: compiler/rules/match.py.
Source: docs/behaviour/engine 1; docs/behaviour/controllers 1.2
(MatchResources).
"""

from typing import Literal

from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.policy.fields.record import Fields

Operation = Literal["CREATE", "CONNECT", "UPDATE", "DELETE"]


class Subject(Fields, frozen=True, kw_only=True):
    """A user, group or service account."""

    kind: str
    api_group: str = ""
    name: str
    namespace: str = ""


class ResourceDescription(Fields, frozen=True):
    """Criteria for the resource; all criteria that are set must match.

    ``annotations`` None means absent; an empty map disables autogen.
    """

    kinds: tuple[str, ...] = ()
    name: str = ""
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    annotations: dict[str, str] | None = None
    selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    operations: tuple[Operation, ...] = ()


class ResourceFilter(Fields, frozen=True):
    """One filter; user info and resources must both match."""

    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    subjects: tuple[Subject, ...] = ()
    resources: ResourceDescription = ResourceDescription()


class MatchResources(Fields, frozen=True):
    """``match`` or ``exclude`` of a rule; the inline fields are deprecated."""

    any: tuple[ResourceFilter, ...] = ()
    all: tuple[ResourceFilter, ...] = ()
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    subjects: tuple[Subject, ...] = ()
    resources: ResourceDescription = ResourceDescription()

    def kinds(self) -> tuple[str, ...]:
        """Return all kinds: of the inline form, of ``all``, then of ``any``."""
        filters = self.all + self.any
        return self.resources.kinds + tuple(
            kind for entry in filters for kind in entry.resources.kinds
        )


class EmptyMatch(MatchResources, frozen=True):
    """An ``exclude`` with only empty lists and maps, e.g. ``{any: []}``.

    KYVERNO: it excludes nothing, but upstream does not treat it as empty, so that the
    policy is rejected (docs/behaviour/engine 10.5).
    """


class MatchFilters(Fields, frozen=True):
    """``match`` or ``exclude`` of an exception or a clean-up policy."""

    any: tuple[ResourceFilter, ...] = ()
    all: tuple[ResourceFilter, ...] = ()
