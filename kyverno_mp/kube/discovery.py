"""Map kinds to the resources that the API server serves, with their scope.

Room: kube. Takes: the discovery documents. Gives: Directory, an immutable list, and
Discovery, which keeps the last good Directory. Next: controllers/webhook_config,
leader.
May touch: the API server through kube/rest.py.
Source: docs/behaviour/controllers 3.3 items 5-6; Kyverno
pkg/clients/dclient/discovery.go at v1.18.2; Kubernetes API concepts (aggregated
discovery).

Aggregated discovery takes two calls. Servers before 1.26 support only the older form,
which takes one call for each group version. A group whose server does not answer keeps
its last known resources, so an aggregated API that is down does not remove rules from a
webhook.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from kyverno_mp.errors import DependencyError, KubeUnavailable
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.wildcard import matches

_T = TypeVar("_T")
_AGGREGATED: Final = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,"
    "application/json"
)


class _ResponseKind(msgspec.Struct):
    group: str = ""
    version: str = ""
    kind: str = ""


class _Subresource(msgspec.Struct, rename="camel"):
    subresource: str
    response_kind: _ResponseKind | None = None
    verbs: tuple[str, ...] = ()


class _Resource(msgspec.Struct, rename="camel"):
    resource: str
    scope: str = "Namespaced"
    response_kind: _ResponseKind | None = None
    verbs: tuple[str, ...] = ()
    subresources: tuple[_Subresource, ...] = ()


class _Version(msgspec.Struct, rename="camel"):
    version: str
    resources: tuple[_Resource, ...] = ()
    freshness: str = "Current"


class _Meta(msgspec.Struct):
    name: str = ""


class _Group(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    versions: tuple[_Version, ...] = ()


class _GroupVersion(msgspec.Struct, rename="camel"):
    group_version: str = ""


class _OldGroup(msgspec.Struct):
    versions: tuple[_GroupVersion, ...] = ()


class _Groups(msgspec.Struct):
    """Either response of ``/api`` and ``/apis``."""

    kind: str = ""
    items: tuple[_Group, ...] = ()
    versions: tuple[str, ...] = ()
    groups: tuple[_OldGroup, ...] = ()


class _OldResource(msgspec.Struct):
    name: str
    namespaced: bool = False
    kind: str = ""
    verbs: tuple[str, ...] = ()


class _OldList(msgspec.Struct):
    resources: tuple[_OldResource, ...] = ()


_GROUPS: Final = msgspec.json.Decoder(_Groups)
_OLD_LIST: Final = msgspec.json.Decoder(_OldList)


class Directory:
    """All resources at one moment, in the server's order."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.resources = tuple(resources)
        self._whole = tuple(
            resource for resource in self.resources if not resource.subresource
        )

    def find(self, selector: KindSelector) -> tuple[Resource, ...]:
        """Return the resources of a kind selector, or the subresources that it names.

        The kind ``*`` matches all kinds; webhook configurations keep it as ``*``
        (3.3.6).
        """
        resources = [
            resource
            for resource in self._whole
            if matches(selector.group, resource.group)
            and matches(selector.version, resource.version)
            and matches(selector.kind, resource.kind)
        ]
        if not selector.subresource:
            return tuple(resources)
        subresources: dict[tuple[str, str, str], Resource] = {}
        for parent in resources:
            pattern = f"{parent.plural}/{selector.subresource}"
            for resource in self.resources:
                same = (resource.group, resource.version) == (
                    parent.group,
                    parent.version,
                )
                if resource.subresource and same and matches(pattern, resource.name):
                    subresources[resource.group, resource.version, resource.name] = (
                        resource
                    )
        return tuple(subresources.values())

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of one exact kind."""
        for resource in self._whole:
            if resource.api_version == api_version and resource.kind == kind:
                return resource
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and other.resources == self.resources

    def __hash__(self) -> int:
        return hash(self.resources)


class Discovery:
    """The last good Directory; ``refresh`` when CRDs or APIServices change."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.directory = Directory(())
        self.stale: tuple[str, ...] = ()
        """Group versions whose server did not answer during the last refresh."""

    def refresh(self) -> bool:
        """Query the API server; return whether it changed. Raises: DependencyError."""
        with self._lock:
            stale: list[str] = []
            resources: list[Resource] = []
            for root in ("/api", "/apis"):
                resources += self._ask(root, stale)
            for group_version in stale:
                resources += [
                    resource
                    for resource in self.directory.resources
                    if resource.api_version == group_version
                ]
            directory = Directory(resources)
            changed = directory != self.directory
            self.directory, self.stale = directory, tuple(stale)
            return changed

    def _ask(self, root: str, stale: list[str]) -> list[Resource]:
        call = Call(method="GET", path=root, accept=_AGGREGATED)
        groups = _decode(self._client.call(call), _GROUPS, root)
        if groups.kind == "APIGroupDiscoveryList":
            return _aggregated(groups.items, stale)
        names = [
            *groups.versions,
            *(
                version.group_version
                for group in groups.groups
                for version in group.versions
            ),
        ]
        return self._ask_each(root, names, stale)

    def _ask_each(
        self, root: str, names: Sequence[str], stale: list[str]
    ) -> list[Resource]:
        resources: list[Resource] = []
        for name in names:
            path = f"{root}/{name}"
            call = Call(method="GET", path=path)
            try:
                listing = _decode(self._client.call(call), _OLD_LIST, path)
            except DependencyError:
                stale.append(name)
                continue
            resources += [_of_old(name, resource) for resource in listing.resources]
        return resources


def _aggregated(groups: Iterable[_Group], stale: list[str]) -> list[Resource]:
    resources: list[Resource] = []
    for group in groups:
        name = group.metadata.name
        for version in group.versions:
            if version.freshness != "Current":
                stale.append(f"{name}/{version.version}" if name else version.version)
                continue
            for resource in version.resources:
                resources += _of_aggregated(name, version.version, resource)
    return resources


def _of_aggregated(group: str, version: str, resource: _Resource) -> list[Resource]:
    namespaced = resource.scope == "Namespaced"
    kind = resource.response_kind.kind if resource.response_kind else ""
    main_resource = Resource(
        group=group,
        version=version,
        plural=resource.resource,
        kind=kind,
        namespaced=namespaced,
        verbs=resource.verbs,
    )
    parts = [
        Resource(
            group=group,
            version=version,
            plural=resource.resource,
            kind=part.response_kind.kind if part.response_kind else "",
            namespaced=namespaced,
            subresource=part.subresource,
            verbs=part.verbs,
        )
        for part in resource.subresources
    ]
    return [main_resource, *parts]


def _of_old(group_version: str, old_resource: _OldResource) -> Resource:
    group, _, version = group_version.rpartition("/")
    plural, _, subresource = old_resource.name.partition("/")
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=old_resource.kind,
        namespaced=old_resource.namespaced,
        subresource=subresource,
        verbs=old_resource.verbs,
    )


def _decode(body: bytes, decoder: msgspec.json.Decoder[_T], path: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeUnavailable(
            "kube.answer", f"{path}: the response is not a discovery document"
        ) from error
