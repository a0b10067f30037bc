"""The doors through which rules reach the world; the adapters live at the edges.

Room: program. Gives: Protocols that kube, registry, snapshot data segments and the
CLI's given values satisfy by shape. A port that has nothing to give raises
ExpressionFailed with the text upstream gives; it never returns an empty value in place
of an error.
May touch: nothing; the adapters do.
Source: spec/engine.md 3.7; spec/controllers.md 11.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kyverno_mp.limits import CONTEXT_BYTES_MAX
from kyverno_mp.values.image import ImageSettings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import contains_wildcard


class ConfigMaps(Protocol):
    """ConfigMaps by namespace and name."""

    def config_map(self, namespace: str, name: str) -> Json:
        """Return the ConfigMap object, e.g. ``{"metadata": .., "data": {..}}``.

        Raises: ExpressionFailed (``context.configmap_not_found``).
        """


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One call that a context entry asks for: to the API server or a service."""

    method: str
    path: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: Json = None
    ca_bundle: str = ""
    policy_namespace: str = ""
    """Namespace of a namespaced Policy, "" for a ClusterPolicy: the reach of the
    call."""


class ApiCalls(Protocol):
    """Calls to the API server and to allowed services."""

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the decoded JSON answer.

        Raises: ExpressionFailed (``context.apicall``), DeadlinePassed.
        """


class Images(Protocol):
    """Image metadata from registries."""

    def image_data(self, reference: str, deadline_ns: int) -> Json:
        """Return what is known of the image.

        Shape: ``{image, resolvedImage, registry, repository, identifier,
        manifestList, manifest, configData}``.

        Raises: ExpressionFailed, RegistryUnavailable.
        """


class GlobalContext(Protocol):
    """GlobalContextEntries, cached by the leader."""

    def entry(self, name: str) -> Json:
        """Return the data of ``entry`` or ``entry.projection``.

        Raises: ExpressionFailed (``failed to fetch entry key=<name>``).
        """


class Namespaces(Protocol):
    """Labels of namespaces."""

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels, None when the namespace is not known."""


class NamespaceObjects(Protocol):
    """Namespaces themselves."""

    def namespace(self, name: str, deadline_ns: int) -> Json | None:
        """Return the Namespace, None when there is none such.

        Raises: DependencyError.
        """


@dataclass(frozen=True, slots=True)
class ObjectsAsked:
    """Which objects: wildcard patterns as in ``kinds``.

    ``namespace`` and ``name`` are wildcard patterns, too; "" = any.
    """

    group: str
    version: str
    kind: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def is_one(self) -> bool:
        """Return whether a single object is named, to be read instead of listed."""
        names = (self.namespace, self.name)
        return all(names) and not any(map(contains_wildcard, names))


class Objects(Protocol):
    """Objects of the cluster, by kind: the targets of mutate-existing rules."""

    def objects(self, asked: ObjectsAsked, deadline_ns: int) -> Sequence[Json]:
        """Return the objects, sorted by namespace and name.

        Raises: ExpressionFailed (an unknown kind), KubeUnavailable, DeadlinePassed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAsked:
    """May this user do that? ``attributes``: as CEL's authorizer names them.

    E.g. ``{"group": "apps", "resource": "deployments", "verb": "delete"}``, or
    ``{"path": "/healthz", "verb": "get"}``.
    """

    user: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)


class Authority(Protocol):
    """Who may do what in the cluster."""

    def may(self, asked: AccessAsked, deadline_ns: int) -> tuple[bool, str]:
        """Return whether it is allowed, and the reason given.

        Raises: DependencyError.
        """


class Scopes(Protocol):
    """Which kinds lie in namespaces."""

    def is_namespaced(self, group: str, version: str, kind: str) -> bool:
        """Answer for a kind. Raises: ExpressionFailed when there is none such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """What the operator decides about rules (controllers.md 10.3)."""

    images: ImageSettings = field(default_factory=ImageSettings)
    context_bytes_max: int = CONTEXT_BYTES_MAX


_DEFAULT_SETTINGS = RuleSettings()


@dataclass(frozen=True, slots=True)
class World:
    """All doors together.

    None = nothing behind the door: the context entry is not registered, as in Kyverno's
    offline mode (engine.md 3.7).
    """

    config_maps: ConfigMaps | None = None
    api_calls: ApiCalls | None = None
    images: Images | None = None
    global_context: GlobalContext | None = None
    namespaces: Namespaces | None = None
    namespace_objects: NamespaceObjects | None = None
    objects: Objects | None = None
    scopes: Scopes | None = None
    authority: Authority | None = None
    random_bytes: Callable[[int], bytes] | None = None
    """What JMESPath's ``random`` draws from."""
    resolve_host: Callable[[str], list[str]] | None = None
    """Addresses of a host, for ``is_external_url``; may block."""
    settings: Callable[[], RuleSettings] = lambda: _DEFAULT_SETTINGS
    """What holds now; asked when it is needed, so it may change between requests."""


OFFLINE = World()
"""No doors at all."""
