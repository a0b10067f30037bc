"""Define the ports through which rules access cluster data; adapters are elsewhere.

Room: program. Gives: Protocols that kube, registry, snapshot data segments and the
CLI's values implement structurally. A port without a result raises ExpressionFailed
with upstream's message; it never returns an empty value instead of an error.
May touch: nothing; the adapters do I/O. Over 400 lines: all ports of rules.
Source: docs/behaviour/engine 3.7; docs/behaviour/controllers 11.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from kyverno_mp.errors import Error, without_frames
from kyverno_mp.limits import CONTEXT_BYTES_MAX
from kyverno_mp.policy.fields.image_verification import KeylessAttestor
from kyverno_mp.policy.fields.validation import ObjectFieldBinding
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import ImageSettings
from kyverno_mp.values.wildcard import contains_wildcard

if TYPE_CHECKING:
    # PERF: imported late for a fast start of the CLI; CEL is loaded only if needed.
    from kyverno_mp.expr.cel.outside import (
        GeneratorPort,
        GlobalPort,
        HttpPort,
        ImagePort,
        ResourcePort,
    )
    from kyverno_mp.values.typed.schema import Schemas


_T = TypeVar("_T")


class ConfigMaps(Protocol):
    """Port for ConfigMaps by namespace and name."""

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return the ConfigMap object, e.g. ``{"metadata": .., "data": {..}}``.

        Raises: ExpressionFailed (``context.configmap_not_found``), DeadlinePassed.
        """


class ApiRequest(NamedTuple):
    """One call for a context entry: to the API server or a service."""

    method: str
    path: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: Json = None
    ca_bundle: str = ""
    policy_namespace: str = ""
    """Namespace of a namespaced Policy, "" for a ClusterPolicy; it limits the call's
    scope."""


class ApiCalls(Protocol):
    """Port for calls to the API server and to allowed services."""

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the decoded JSON response.

        Raises: ExpressionFailed (``context.apicall``), DeadlinePassed.
        """


class Images(Protocol):
    """Port for image metadata from registries."""

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Json:
        """Return the image's metadata.

        Shape: ``{image, resolvedImage, registry, repository, identifier,
        manifestList, manifest, configData}``. ``is_tenants``: for a namespaced policy.

        Raises: ExpressionFailed, RegistryUnavailable.
        """


ReadNamedSecret: TypeAlias = Callable[[str, str, int], Json | None]
"""Takes namespace, name and deadline; returns the Secret, None if it does not exist.

Raises: DependencyError.
"""


class RegistryAccess(NamedTuple):
    """A block's imageRegistryCredentials; ``is_tenants``: the policy is namespaced."""

    insecure: bool = False
    providers: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    is_tenants: bool = False


class Identity(NamedTuple):
    """Required contents of a signing certificate; all empty = any certificate."""

    subject: str = ""
    subject_reg_exp: str = ""
    issuer: str = ""
    issuer_reg_exp: str = ""
    extensions: tuple[tuple[str, str], ...] = ()


class LogTerms(NamedTuple):
    """Requirements for log entries of a signature; "" = keys of the trust root."""

    is_ignored: bool = False
    url: str = ""
    key: str = ""
    ignores_scts: bool = False
    scts_key: str = ""
    tsa_chain: str = ""


class SignatureQuery(NamedTuple):
    """One attestor of an image: a key, a certificate, or any certificate below roots.

    ``key``: PEM text or a reference; ``chain``: root certificates, or the chain above
    ``certificate``; ``is_keyless``: signed by an identity; without ``roots``, the roots
    are the trust root's. Signatures are in ``repository`` ("": the image's repository).
    ``predicate_type``: type of the statements to verify or to look up; ``form``: the
    block's type. ``is_tenants``: the policy is namespaced, in ``namespace``.
    """

    image: str
    key: str = ""
    certificate: str = ""
    chain: str = ""
    roots: str = ""
    identity: Identity = Identity()
    is_keyless: bool = False
    logs: LogTerms = LogTerms()
    algorithm: str = "sha256"
    annotations: Mapping[str, str] = {}
    repository: str = ""
    oci11: bool = False
    predicate_type: str = ""
    access: RegistryAccess = RegistryAccess()
    form: str = "Cosign"
    use_cache: bool = True
    is_tenants: bool = False
    namespace: str = ""


class ReviewedImages(Protocol):
    """The images of one review; a tag is resolved only once."""

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest of the image.

        Raises: ExpressionFailed, RegistryUnavailable, DeadlinePassed.
        """

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor signed. Raises: as ``digest`` does."""

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the attestor's statements. Raises: as ``digest`` does."""

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts of a review's work, in parallel threads if some are free.

        Each part handles another image, and can use this port. At the deadline, parts
        that have not started are dropped. Raises: the parts' errors.
        """


class ManifestQuery(NamedTuple):
    """One attestor of an object that was signed as YAML.

    ``key``: PEM text or a reference; ``certificate``: PEM text, of which only the key
    is used, unless there is a ``chain``: PEM text of intermediates and, last, the root,
    which must vouch for the certificate or, without one, for that of the signature;
    ``domain``: prefix of the annotations with message and signatures;
    ``tenant``: the namespace of a namespaced policy, None for a cluster policy.
    ``dry_run``: the namespace in which the manifest is created in a dry run if it is
    not equal to the object, "" = no dry run. ``dry_runs``: where the result of the dry
    runs is kept, which is the same for all attestors of an object and a rule.
    """

    document: dict[str, Json]
    domain: str
    key: str = ""
    certificate: str = ""
    chain: str = ""
    keyless: KeylessAttestor | None = None
    ignored: tuple[ObjectFieldBinding, ...] = ()
    tenant: str | None = None
    dry_run: str = ""
    dry_runs: "Once | None" = None


class Once:
    """A result, or an error, that is computed once."""

    def __init__(self) -> None:
        self._found: Any = None
        self._error: Error | None = None
        self._is_known = False

    def get(self, compute: Callable[[], _T]) -> _T:
        """Return the result of the first call. Raises: its Error."""
        if not self._is_known:
            try:
                self._found = compute()
            except Error as error:
                self._error = without_frames(error)
            self._is_known = True
        if self._error is not None:
            # SAFETY: a new error object, because a raise adds frames to it.
            raise type(self._error)(self._error.code, self._error.message)
        value: _T = self._found
        return value


class ManifestAnswer(NamedTuple):
    """Whether the object is verified, its signer ("": a key), and the differences."""

    is_verified: bool
    signer: str = ""
    diff: str = ""


class SignedManifests(Protocol):
    """Port for the signatures of objects."""

    def verify(self, manifest_query: ManifestQuery, deadline_ns: int) -> ManifestAnswer:
        """Verify one attestor.

        Raises: ExpressionFailed, ``manifest.absent`` if there is no signature at all.
        """


class GlobalContext(Protocol):
    """Port for GlobalContextEntries, which the leader caches."""

    def entry(self, name: str) -> Json:
        """Return the data of ``entry`` or ``entry.projection``.

        Raises: ExpressionFailed (``failed to fetch entry key=<name>``).
        """

    def opens(self, name: str, namespace: str) -> bool:
        """Return whether policies of the namespace may read the entry ``name``."""


class Namespaces(Protocol):
    """Port for the labels of namespaces."""

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return the namespace's labels; None if the namespace is unknown."""


class NamespaceObjects(Protocol):
    """Port for Namespace objects."""

    def namespace(self, name: str, deadline_ns: int) -> Json | None:
        """Return the Namespace; None if it does not exist.

        Raises: DependencyError.
        """


class ObjectQuery(NamedTuple):
    """A query for objects: wildcard patterns as in ``kinds``.

    ``namespace`` and ``name`` are also wildcard patterns; "" = any.
    """

    group: str
    version: str
    kind: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def is_one(self) -> bool:
        """Return whether the query names a single object, to read instead of list."""
        names = (self.namespace, self.name)
        return all(names) and not any(map(contains_wildcard, names))


class Objects(Protocol):
    """Port for the cluster's objects by kind: the targets of mutate-existing rules."""

    def objects(self, object_query: ObjectQuery, deadline_ns: int) -> Sequence[Json]:
        """Return the objects, sorted by namespace and name.

        Raises: ExpressionFailed (an unknown kind), KubeUnavailable, DeadlinePassed.
        """


class AccessQuery(NamedTuple):
    """An access check for a user; ``attributes`` has the names of CEL's authorizer.

    E.g. ``{"group": "apps", "resource": "deployments", "verb": "delete"}``, or
    ``{"path": "/healthz", "verb": "get"}``.
    """

    user: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Sequence[str]] = {}
    attributes: Mapping[str, str] = {}


class Authority(Protocol):
    """Port for the cluster's authorizer."""

    def may(self, access_query: AccessQuery, deadline_ns: int) -> tuple[bool, str]:
        """Return whether access is allowed, and the authorizer's reason.

        Raises: DependencyError.
        """


class KindScopes(Protocol):
    """Port for the scopes of kinds."""

    def is_namespaced(self, group: str, version: str, kind: str) -> bool:
        """Return whether the kind is namespaced; raises ExpressionFailed if unknown."""


class RuleSettings(NamedTuple):
    """The operator's settings for rules (docs/behaviour/controllers 10.3)."""

    images: ImageSettings = ImageSettings()
    context_bytes_max: int = CONTEXT_BYTES_MAX


_DEFAULT_SETTINGS = RuleSettings()


class KindTypes(Protocol):
    """Port for the schemas of kinds, for apply configurations."""

    def types(self, api_version: str, kind: str, deadline_ns: int) -> "Schemas | None":
        """Return the schemas of a kind and all built-in kinds; None if not served.

        Raises: DependencyError, InputError.
        """


class CelPorts(NamedTuple):
    """The ports of CEL policies; an expression that uses an absent port fails."""

    resources: "ResourcePort | None" = None
    references: "GlobalPort | None" = None
    images: "ImagePort | None" = None
    services: "HttpPort | None" = None
    own_resources: "ResourcePort | None" = None
    """Replaces ``resources`` for namespaced policies: limited to their permissions."""
    own_images: "ImagePort | None" = None
    """Replaces ``images`` for namespaced policies: without our credentials."""
    namespaces: NamespaceObjects | None = None
    generator: "GeneratorPort | None" = None
    types: KindTypes | None = None
    """Schemas of custom kinds; None: only built-in kinds have schemas."""


_NO_CEL = CelPorts()


@dataclass(frozen=True, slots=True)
class ClusterData:
    """All ports together.

    None means no adapter: the context entry is not registered, as in Kyverno's offline
    mode (docs/behaviour/engine 3.7).
    """

    config_maps: ConfigMaps | None = None
    api_calls: ApiCalls | None = None
    images: Images | None = None
    reviewed_images: Callable[[], ReviewedImages] | None = None
    """Starts the image verification of one review, for verifyImages rules."""
    manifests: SignedManifests | None = None
    key_secrets: ReadNamedSecret | None = None
    """Reads Secrets with public keys, for a caller that opens the ports above later."""
    global_context: GlobalContext | None = None
    namespaces: Namespaces | None = None
    namespace_objects: NamespaceObjects | None = None
    objects: Objects | None = None
    scopes: KindScopes | None = None
    authority: Authority | None = None
    cel: CelPorts = _NO_CEL
    random_bytes: Callable[[int], bytes] | None = None
    """Source of randomness for JMESPath's ``random``."""
    resolve_host: Callable[[str], list[str]] | None = None
    """Addresses of a host, for ``is_external_url``; may block."""
    settings: Callable[[], RuleSettings] = lambda: _DEFAULT_SETTINGS
    """Returns the current settings; read at each use, so they can change between
    requests."""


OFFLINE = ClusterData()
"""Cluster data without any adapter."""


class Lock(Protocol):
    """Lock of threads that share an engine, e.g. ``threading.Lock``."""

    def acquire(self, blocking: bool = True) -> bool:  # noqa: FBT001, FBT002 - threading's
        """Acquire the lock; without ``blocking``, return False if it is locked."""

    def release(self) -> None:
        """Release the lock."""
