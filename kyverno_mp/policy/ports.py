"""Define the ports of checks to the cluster, and a table of built-in kinds.

Room: policy. Takes: nothing. Gives: Kinds, Permissions, SchemaSource (Protocols),
ClusterView, BuiltInKinds. Next: policy/review.py, its checks, compiler/type_check.py.
Source: docs/behaviour/engine 10.6; docs/behaviour/controllers 5.9, 7.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.kubernetes.openapi import Schemas
from kyverno_mp.values.wildcard import matches


class FoundKind(NamedTuple):
    """A resource that a kind selector matches; ``subresource`` "" = none."""

    resource: ApiResource
    subresource: str = ""


class Kinds(Protocol):
    """The kinds known by discovery."""

    @property
    def is_complete(self) -> bool:
        """Return whether all existing kinds are known."""

    def find(self, selector: KindSelector) -> list[FoundKind]:
        """Return all resources that the selector's four patterns match."""

    def cluster_kinds(self) -> frozenset[str]:
        """Return ``Kind`` and ``group/version/Kind`` of cluster-scoped kinds."""

    def subresource_kinds(self) -> frozenset[str]:
        """Return the known kinds that are used only by subresources."""


class Permissions(Protocol):
    """The RBAC permissions of service accounts."""

    def allows(self, account: str, verb: str, target: "PermissionTarget") -> bool:
        """Answer like a SubjectAccessReview. Raises: DependencyError."""


class Author(NamedTuple):
    """The user who creates or changes a policy."""

    name: str
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = {}


OF_SERVICE: Final = "of this service"
"""Stands for the namespace of this service in the attributes of ``author_may``."""


class Authors(Protocol):
    """The permissions of users who write policies."""

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        """Return the answer of a SubjectAccessReview. Raises: DependencyError."""


class SchemaSource(Protocol):
    """The schemas of kinds as published by the API server."""

    def schemas(self, group_versions: Iterable[tuple[str, str]]) -> "KnownSchemas":
        """Return the schemas of the API versions; late schemas are omitted."""


KnownSchemas = Mapping[tuple[str, str], Schemas]
"""(group, version) -> schemas, without unpublished or late schemas."""


class PermissionTarget(NamedTuple):
    """The object of a permission check."""

    resource: ApiResource
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def account_of(namespace: str, component: str) -> str:
    """Return the user name of a component's service account."""
    return f"system:serviceaccount:{namespace}:kyverno-{component}-controller"


Opens = Callable[[str, str], bool]
"""Whether policies of a namespace may read a GlobalContextEntry: (entry, namespace)."""


def closed(_entry: str, _namespace: str) -> bool:
    """Open no entry."""
    return False


class ClusterView(NamedTuple):
    """The view that checks have of the cluster; ``permissions`` None = not checked.

    ``schemas`` None: CEL is not checked against the schemas of kinds. The accounts are
    user names; for "", permissions are not checked. ``opens``: which entries the
    operator has opened to namespaced policies. ``authors`` None: what the author of a
    namespaced policy may do is not checked.
    """

    kinds: Kinds
    permissions: Permissions | None = None
    schemas: SchemaSource | None = None
    admission: str = account_of("kyverno", "admission")
    background: str = account_of("kyverno", "background")
    reports: str = account_of("kyverno", "reports")
    cleanup: str = account_of("kyverno", "cleanup")
    opens: Opens = closed
    authors: Authors | None = None


class BuiltInKinds:
    """Kinds from a table; ``is_complete``: other kinds do not exist."""

    def __init__(
        self,
        resources: Iterable[ApiResource] = BUILT_IN,
        *,
        is_complete: bool = False,
    ) -> None:
        """Use the table; by default, it contains the built-in kinds."""
        self._resources = tuple(resources)
        self._is_complete = is_complete
        cluster = [
            resource for resource in self._resources if not resource.is_namespaced
        ]
        self._cluster_kinds = frozenset(
            resource.kind for resource in cluster
        ) | frozenset(f"{resource.api_version}/{resource.kind}" for resource in cluster)

    @property
    def is_complete(self) -> bool:
        """Return whether all existing kinds are known."""
        return self._is_complete

    def find(self, selector: KindSelector) -> list[FoundKind]:
        """Return all resources that the selector's four patterns match."""
        resources = []
        for resource in self._resources:
            if not (
                matches(selector.group, resource.group)
                and matches(selector.version, resource.version)
                and matches(selector.kind, resource.kind)
            ):
                continue
            if not selector.subresource:
                resources.append(FoundKind(resource))
                continue
            names = (
                n for n in resource.subresources if matches(selector.subresource, n)
            )
            resources.extend(FoundKind(resource, name) for name in names)
        return resources

    def cluster_kinds(self) -> frozenset[str]:
        """Return ``Kind`` and ``group/version/Kind`` of cluster-scoped kinds."""
        return self._cluster_kinds

    def subresource_kinds(self) -> frozenset[str]:
        """Return an empty set, because the table has no kinds of subresources."""
        return frozenset()
