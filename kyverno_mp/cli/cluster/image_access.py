"""Verify images on the command line, with this machine's access to registries.

Room: cli. Takes: docker's configuration, if its use is allowed. Gives: the ports of
verifyImages rules and of ImageValidatingPolicies. Next: cli/apply/evaluate.
May touch: docker's config.json, the network, the clock.
Source: docs/behaviour/images 2.1 (CLI), 6 (client choice).
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from kyverno_mp.cli.cluster.registry_access import docker_client, soon_ns, user_agent
from kyverno_mp.cli.cluster.trust import LocalTrustRoot, ask_log
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.key_secrets import key_providers
from kyverno_mp.images.network import mirror_reader
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.limits import IMAGES_AT_ONCE_MAX
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.ports import ReadNamedSecret, RegistryAccess
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.registry.exchange import exchange
from kyverno_mp.registry.layout import LayoutRegistry

_DOCKER: Final = "default"


class _Clients:
    """One client for each kind of access, kept for the run."""

    def __init__(self, *, uses_docker: bool) -> None:
        self._uses_docker = uses_docker
        self._known: dict[tuple[bool, bool], Client] = {}
        self._lock = threading.Lock()

    def __call__(self, access: RegistryAccess) -> Client:
        """Return the client.

        KYVERNO: credentials in a verifyImages block replace the default credentials.
        Secrets are ignored, because there is no cluster.
        """
        has_credentials = bool(access.providers or access.secrets)
        docker = _DOCKER in access.providers if has_credentials else self._uses_docker
        key = (docker, access.insecure)
        with self._lock:
            client = self._known.get(key)
            if client is None:
                # SAFETY: the insecure client is a separate one. Upstream shares one
                # transport, so an insecure registry turns off the verification of
                # certificates for all registries.
                client = self._known[key] = (
                    docker_client(insecure=access.insecure)
                    if docker
                    else Client(
                        lambda _registry: Credentials(),
                        user_agent=user_agent(),
                        insecure=access.insecure,
                    )
                )
        return client


def _now() -> datetime:
    return datetime.now(UTC)


def until(deadline_ns: int) -> int:
    """Return the deadline of a read that starts now."""
    return min(deadline_ns, soon_ns()) if deadline_ns else soon_ns()


def layout_client(folder: str) -> Client:
    """Return a client that reads a folder of images. Raises: SettingInvalid."""
    return Client(
        lambda _registry: Credentials(),
        user_agent=user_agent(),
        send=LayoutRegistry(Path(folder)),
    )


def clients(
    *, uses_docker: bool, layout: str = ""
) -> Callable[[RegistryAccess], Client]:
    """Return the client for each access; ``layout``: a folder to read instead."""
    if not layout:
        return _Clients(uses_docker=uses_docker)
    client = layout_client(layout)
    return lambda _access: client


def policy_images(
    *,
    uses_docker: bool,
    layout: str = "",
    key_secrets: ReadNamedSecret | None = None,
) -> Callable[[], PolicyImages]:
    """Return a factory of reviews of ImageValidatingPolicies; see ``image_reviews``."""
    fetch = mirror_reader(exchange, user_agent())
    return PolicyReader(
        client=clients(uses_docker=uses_docker, layout=layout),
        now=_now,
        until=until,
        trust=PolicyTrust(LocalTrustRoot(), fetch),
        send=None if layout else ask_log,
        providers=key_providers(key_secrets),
    ).begin


def image_reviews(
    *,
    uses_docker: bool,
    layout: str = "",
    key_secrets: ReadNamedSecret | None = None,
) -> Callable[[], ImageReview]:
    """Return a factory of image reviews; ``uses_docker``: with docker's credentials.

    ``layout``: a folder to read instead of registries; transparency logs are not used
    then. ``key_secrets`` reads Secrets with public keys; None: without a cluster.
    """
    return partial(
        ImageReview,
        clients(uses_docker=uses_docker, layout=layout),
        _now,
        until,
        trust=LocalTrustRoot(),
        send=None if layout else ask_log,
        helpers=Helpers(IMAGES_AT_ONCE_MAX - 1),
        providers=key_providers(key_secrets),
    )
