"""Say what checks may ask of a cluster, and answer for built-in kinds without one.

Room: policy. Takes: nothing. Gives: Kinds, Permissions, SchemaSource (Protocols),
ClusterView, BuiltInKinds. Next: policy/review.py, its checks, compiler/type_check.py.
May touch: nothing; adapters do.
Source: spec/engine.md 10.6; spec/controllers.md 5.9, 7.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kyverno_mp.values.built_in_kinds import BUILT_IN, ApiResource
from kyverno_mp.values.kinds import KindSelector
from kyverno_mp.values.openapi import Schemas
from kyverno_mp.values.wildcard import matches


class FoundKind(NamedTuple):
    """A resource that a kind selector names; ``subresource`` "" = the resource."""

    resource: ApiResource
    subresource: str = ""


class Kinds(Protocol):
    """What discovery knows."""

    @property
    def is_complete(self) -> bool:
        """Return whether a kind that is not found does not exist."""

    def find(self, selector: KindSelector) -> list[FoundKind]:
        """Return everything that the selector's four patterns match."""

    def cluster_kinds(self) -> frozenset[str]:
        """Return ``Kind`` and ``group/version/Kind`` of what has no namespace."""

    def subresource_kinds(self) -> frozenset[str]:
        """Return the kinds that nothing but subresources has, as far as is known."""


class Permissions(Protocol):
    """What RBAC grants to service accounts."""

    def allows(self, account: str, verb: str, target: "Target") -> bool:
        """Answer as a SubjectAccessReview would. Raises: DependencyError."""


class SchemaSource(Protocol):
    """What the API server publishes of the kinds' schemas."""

    def schemas(self, group_versions: Iterable[tuple[str, str]]) -> "KnownSchemas":
        """Return the schemas of these groups and versions; those it can get in time."""


KnownSchemas = Mapping[tuple[str, str], Schemas]
"""(group, version) -> schemas; what is not published, or not in time, is left out."""


class Target(NamedTuple):
    """What a permission is asked for."""

    resource: ApiResource
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def account_of(namespace: str, component: str) -> str:
    """Return the user name of a component's service account."""
    return f"system:serviceaccount:{namespace}:kyverno-{component}-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as checks see it; ``permissions`` None = they are not checked.

    ``schemas`` None = CEL is not checked against the kinds it is for. The accounts are
    user names; what "" might do is not checked.
    """

    kinds: Kinds
    permissions: Permissions | None = None
    schemas: SchemaSource | None = None
    admission: str = account_of("kyverno", "admission")
    background: str = account_of("kyverno", "background")
    reports: str = account_of("kyverno", "reports")
    cleanup: str = account_of("kyverno", "cleanup")


class BuiltInKinds:
    """Kinds from a table; ``is_complete`` says whether there are others, too."""

    def __init__(
        self,
        resources: Iterable[ApiResource] = BUILT_IN,
        *,
        is_complete: bool = False,
    ) -> None:
        """Take the table; the default is what every cluster has."""
        self._resources = tuple(resources)
        self._is_complete = is_complete
        cluster = [one for one in self._resources if not one.is_namespaced]
        self._cluster_kinds = frozenset(one.kind for one in cluster) | frozenset(
            f"{one.api_version}/{one.kind}" for one in cluster
        )

    @property
    def is_complete(self) -> bool:
        """Return whether a kind that is not found does not exist."""
        return self._is_complete

    def find(self, selector: KindSelector) -> list[FoundKind]:
        """Return everything that the selector's four patterns match."""
        found = []
        for one in self._resources:
            if not (
                matches(selector.group, one.group)
                and matches(selector.version, one.version)
                and matches(selector.kind, one.kind)
            ):
                continue
            if not selector.subresource:
                found.append(FoundKind(one))
                continue
            names = (n for n in one.subresources if matches(selector.subresource, n))
            found.extend(FoundKind(one, name) for name in names)
        return found

    def cluster_kinds(self) -> frozenset[str]:
        """Return ``Kind`` and ``group/version/Kind`` of what has no namespace."""
        return self._cluster_kinds

    def subresource_kinds(self) -> frozenset[str]:
        """Return nothing: the table has no kinds of subresources."""
        return frozenset()
