"""Access image registries with the credentials of this machine's user.

Room: cli. Takes: docker's configuration. Gives: a Client, and the registry port of
rules. Next: oci, data. May touch: docker's config.json, the network, the clock.
Source: docs/behaviour/cli 2 (--registry), 7b; docs/behaviour/engine 3.7
(imageRegistry).
"""

import platform
import time
from pathlib import Path
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.errors import ExpressionFailed, RequestInvalid
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import (
    Credentials,
    DockerConfig,
    RegistryCertificates,
)
from kyverno_mp.registry.image import image_data
from kyverno_mp.settings.read import environment
from kyverno_mp.values.jsonvalue import Json

_CERTIFICATES: Final = "KYVERNO_MP_REGISTRY_CERTIFICATES"
REQUEST_S_MAX: Final = 60.0
"""Time for one look-up or transfer, including its authorisation."""


def docker_client(*, insecure: bool = False) -> Client:
    """Return a client with the credentials of docker's configuration."""
    folder = environment().get("DOCKER_CONFIG")
    config = DockerConfig(Path(folder) if folder else Path.home() / ".docker")
    certificates = RegistryCertificates(environment().get(_CERTIFICATES, ""))

    def credentials(host: str) -> Credentials:
        return certificates.added(config.credentials(host), host)

    return Client(credentials, user_agent=user_agent(), insecure=insecure)


def user_agent() -> str:
    """Return the User-Agent for registries."""
    system = f"{platform.system().lower()}; {platform.machine()}"
    return f"kyverno-mp/{__version__} ({system})"


def soon_ns() -> int:
    """Return the deadline of a request that starts now."""
    return time.monotonic_ns() + int(REQUEST_S_MAX * 1e9)


class RegistryImages:
    """Image data for the rules of one run; each image is looked up once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, Json] = {}

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Json:
        """Return the value. Raises: ExpressionFailed, DependencyError."""
        del is_tenants  # who runs the command reads as himself
        data = self._known.get(reference)
        if data is None:
            until = min(deadline_ns, soon_ns()) if deadline_ns else soon_ns()
            try:
                data = image_data(self._client, reference, until)
            except RequestInvalid as error:
                raise ExpressionFailed(error.code, error.message) from error
            self._known[reference] = data
        return data
