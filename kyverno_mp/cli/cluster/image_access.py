"""Verify images on the command line, with this machine's access to registries.

Room: cli. Takes: docker's configuration, if it may be used. Gives: the ports of
verifyImages rules and of ImageValidatingPolicies. Next: apply/evaluate.
May touch: docker's config.json, the network, the clock.
Source: docs/behaviour/images 2.1 (CLI), 6 (client choice).
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kyverno_mp.cli.cluster.registry_access import docker_client, soon_ns, user_agent
from kyverno_mp.cli.cluster.trust import LocalTrustRoot, ask_log
from kyverno_mp.images.network import mirror_reader
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.ports import RegistryAccess, ReviewedImages
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.registry.exchange import exchange

_DOCKER: Final = "default"


class _Clients:
    """One client for each kind of access, kept for the run."""

    def __init__(self, *, uses_docker: bool) -> None:
        self._uses_docker = uses_docker
        self._known: dict[tuple[bool, bool], Client] = {}

    def __call__(self, access: RegistryAccess) -> Client:
        """Return the client.

        KYVERNO: a block's own credentials replace the others; without a cluster there
        are no Secrets, which are left out.
        """
        own = bool(access.providers or access.secrets)
        docker = _DOCKER in access.providers if own else self._uses_docker
        key = (docker, access.insecure)
        client = self._known.get(key)
        if client is None:
            # SAFETY: the insecure client is one of its own; upstream's shared
            # transport stops checking every registry.
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


def _until(deadline_ns: int) -> int:
    return min(deadline_ns, soon_ns()) if deadline_ns else soon_ns()


def policy_images(*, uses_docker: bool) -> Callable[[], PolicyImages]:
    """Return what begins a review of ImageValidatingPolicies."""
    fetch = mirror_reader(exchange, user_agent())
    return PolicyReader(
        client=_Clients(uses_docker=uses_docker),
        now=_now,
        until=_until,
        trust=PolicyTrust(LocalTrustRoot(), fetch),
        send=ask_log,
        tenants_send=ask_log,
    ).begin


def image_reviews(*, uses_docker: bool) -> Callable[[], ReviewedImages]:
    """Return what begins a review; ``uses_docker``: with docker's credentials."""
    return partial(
        ImageReview,
        _Clients(uses_docker=uses_docker),
        _now,
        _until,
        trust=LocalTrustRoot(),
        send=ask_log,
    )
