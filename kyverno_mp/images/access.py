"""Choose the client and the credentials for a registry, in a running service.

Room: images. Takes: RegistryAccess of a block, Settings, Secrets. Gives: Clients.
Next: images/serving.py, images/verifier.py.
May touch: the API server through the given function, docker's config.json, the clock.
Source: docs/behaviour/images 6 (client choice, keychains, names of Secrets).

A block with credentials uses only these; all other blocks use the credentials of the
operator's settings. A policy neither makes another policy's access insecure nor sends
the operator's credentials by plain HTTP.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from kyverno_mp.errors import ExpressionFailed, SettingInvalid
from kyverno_mp.limits import IMAGE_CLIENTS_MAX, REGISTRY_SECRETS_MAX
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import (
    ANONYMOUS,
    Credentials,
    DockerConfig,
    RegistryCertificates,
    SecretKeys,
)
from kyverno_mp.registry.exchange import Exchange
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_LOG = logging.getLogger(__name__)
_KEPT_NS: Final = 60_000_000_000
"""How long clients and Secrets are cached; changed credentials take effect after a
minute.
"""
_DOCKER: Final = "default"
_CLOUDS: Final = {
    "google": ("gcr.io", "*.gcr.io", "*.pkg.dev"),
    "amazon": ("*.dkr.ecr.*.amazonaws.com", "*.dkr.ecr.*.amazonaws.com.cn"),
    "azure": ("*.azurecr.io", "*.azurecr.cn", "*.azurecr.de", "*.azurecr.us"),
    "github": ("ghcr.io",),
}
"""The providers in upstream's order, each with its registries."""
ReadSecret = Callable[[str], Json | None]
"""Returns the Secret in our namespace, None if it does not exist."""


class Cloud(Protocol):
    """This pod's identity in a cloud, which gives credentials for its registries."""

    @property
    def has_identity(self) -> bool:
        """Whether the pod has one; without it, each call fails."""

    def __call__(self, host: str, deadline_ns: int) -> Credentials | None:
        """Return the credentials for a registry, None if it is not of this cloud.

        Raises: ExpressionFailed, DependencyError.
        """


NO_CERTIFICATES: Final = RegistryCertificates("")
NO_CLOUDS: Final[Mapping[str, Cloud]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """The operator's choices for all registries."""

    namespace: str
    secrets: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    insecure: bool = False
    certificates: RegistryCertificates = NO_CERTIFICATES


class ServedClients:
    """The clients of one process, by access; threads may share it."""

    def __init__(
        self,
        settings: RegistrySettings,
        send: Exchange,
        user_agent: str,
        read_secret: ReadSecret | None,
        docker: DockerConfig,
        clouds: Mapping[str, Cloud] = NO_CLOUDS,
    ) -> None:
        """``read_secret`` None: without a cluster, no Secret exists.

        ``clouds``: provider (``amazon``) -> credentials of this pod's identity.
        """
        self._settings = settings
        self._send = send
        self._user_agent = user_agent
        self._read_secret = read_secret
        self._docker = docker
        self._clouds = clouds
        self._common_clouds = [
            name
            for name in settings.helpers
            # SAFETY: tokens of this pod's identity go over verified TLS only.
            if name in clouds and clouds[name].has_identity and not settings.insecure
        ]
        self._clients: dict[RegistryAccess, tuple[Client, int]] = {}
        self._secrets: dict[str, tuple[SecretKeys | None, int]] = {}
        self._lock = threading.Lock()
        for name in settings.helpers:
            if name in _CLOUDS and name not in self._common_clouds:
                _LOG.warning("registries of %s are read without credentials", name)

    def __call__(self, access: RegistryAccess) -> Client:
        """Return the client for a kind of access."""
        now_ns = time.monotonic_ns()
        with self._lock:
            cached = self._clients.get(access)
            if cached is not None and now_ns - cached[1] < _KEPT_NS:
                return cached[0]
            if len(self._clients) >= IMAGE_CLIENTS_MAX:
                self._clients.clear()
            client = self._client(access)
            self._clients[access] = client, now_ns
        return client

    def _client(self, access: RegistryAccess) -> Client:
        has_credentials = bool(access.providers or access.secrets)
        exposed = access.insecure and (has_credentials or not self._settings.insecure)

        def keychain(reference: Reference, deadline_ns: int) -> Credentials:
            credentials = chosen(reference, deadline_ns)
            return self._settings.certificates.added(credentials, reference.registry)

        def chosen(reference: Reference, deadline_ns: int) -> Credentials:
            # SAFETY: the author of a policy is not trusted with our credentials, which
            # anyone on the network can read if no certificate is verified.
            if exposed and not has_credentials:
                return ANONYMOUS
            if exposed and access.is_tenants:
                message = (
                    "a namespaced policy may not send credentials with"
                    " allowInsecureRegistry"
                )
                raise ExpressionFailed("registry.credentials", message)
            if has_credentials:
                return self._own(access, reference, deadline_ns)
            return self._common(access, reference, deadline_ns)

        return Client(
            lambda _registry: ANONYMOUS,
            user_agent=self._user_agent,
            # KYVERNO: the operator's settings do not apply to a block with credentials.
            insecure=access.insecure
            or (self._settings.insecure and not has_credentials),
            keychain=keychain,
            send=self._send,
        )

    def _own(
        self, access: RegistryAccess, reference: Reference, deadline_ns: int
    ) -> Credentials:
        if _DOCKER in access.providers:
            credentials = self._from_docker(reference, deadline_ns)
            if credentials != ANONYMOUS:
                return credentials
        for name in _CLOUDS:
            if name in access.providers:
                cloud_credentials = self._from_cloud(
                    name, access, reference, deadline_ns
                )
                if cloud_credentials is not None:
                    return cloud_credentials
        return self._from_secrets(access.secrets, reference) or ANONYMOUS

    def _common(
        self, access: RegistryAccess, reference: Reference, deadline_ns: int
    ) -> Credentials:
        settings = self._settings
        credentials = self._from_secrets(settings.secrets, reference)
        if credentials is None and _DOCKER in settings.helpers:
            docker_credentials = self._from_docker(reference, deadline_ns)
            if docker_credentials != ANONYMOUS:
                return docker_credentials
        if credentials is None and not access.is_tenants:
            for name in self._common_clouds:
                credentials = credentials or self._from_cloud(
                    name, access, reference, deadline_ns
                )
        return credentials or ANONYMOUS

    def _from_cloud(
        self, name: str, access: RegistryAccess, reference: Reference, deadline_ns: int
    ) -> Credentials | None:
        """Return None if the registry is not one of this cloud.

        Raises: ExpressionFailed (``registry.provider``), DependencyError.
        """
        if not any(matches(host, reference.registry) for host in _CLOUDS[name]):
            return None
        cloud = self._clouds.get(name)
        if cloud is None:
            message = (
                f"the registry provider {name} is not supported by this version;"
                " name a Secret in imageRegistryCredentials.secrets"
            )
            raise ExpressionFailed("registry.provider", message)
        if access.is_tenants:
            # SAFETY: the identity is the operator's.
            message = f"a namespaced policy may not use the registry provider {name}"
            raise ExpressionFailed("registry.provider", message)
        if access.insecure:
            message = (
                f"the registry provider {name} may not be used with"
                " allowInsecureRegistry"
            )
            raise ExpressionFailed("registry.provider", message)
        return cloud(reference.registry, deadline_ns)

    def _from_docker(self, reference: Reference, deadline_ns: int) -> Credentials:
        try:
            return self._docker.credentials(reference.registry, deadline_ns)
        except SettingInvalid as error:
            raise ExpressionFailed(error.code, error.message) from error

    def _from_secrets(
        self, names: Iterable[str], reference: Reference
    ) -> Credentials | None:
        for name in names:
            keys = self._keys(name)
            if keys is None:
                continue
            credentials = keys.credentials(reference.registry, reference.repository)
            if credentials is not None:
                return credentials
        return None

    def _keys(self, name: str) -> SecretKeys | None:
        """Return the credentials in a Secret, None if it does not exist.

        SAFETY: only Secrets in our own namespace are read. Raises: DependencyError.
        """
        namespace, _, short = name.lstrip("/").rpartition("/")
        if self._read_secret is None or namespace not in (
            "",
            self._settings.namespace,
        ):
            return None
        now_ns = time.monotonic_ns()
        cached = self._secrets.get(short)
        if cached is not None and now_ns - cached[1] < _KEPT_NS:
            return cached[0]
        secret = self._read_secret(short)
        data = secret.get("data") if type(secret) is dict else None
        keys = SecretKeys(data) if type(data) is dict else None
        with self._lock:
            if len(self._secrets) >= REGISTRY_SECRETS_MAX:
                self._secrets.clear()
            self._secrets[short] = keys, now_ns
        return keys
