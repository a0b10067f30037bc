"""Read registries for namespaced ImageValidatingPolicies, without credentials.

Room: images. Takes: the clients of a service, Settings. Gives: ``for_policies``.
Next: images/policies/review.py.
Source: docs/differences.md (ImageValidatingPolicies).

SAFETY: a policy's expressions can read the configuration of images. The author of a
namespaced policy must not read private images with the operator's credentials or with a
Secret in the operator's namespace.
"""

from collections.abc import Callable
from pathlib import Path

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.access import RegistrySettings, ServedClients
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import DockerConfig, RegistryCertificates
from kyverno_mp.registry.exchange import Exchange
from kyverno_mp.settings.settings import Settings


def for_policies(
    clients: Callable[[RegistryAccess], Client],
    settings: Settings,
    send: Exchange,
    user_agent: str,
) -> Callable[[RegistryAccess], Client]:
    """Return a function that selects clients; ``clients`` serves cluster-wide policies.

    The function raises ExpressionFailed for credentials in a namespaced policy.
    """
    anonymous = ServedClients(
        RegistrySettings(
            namespace=settings.namespace,
            insecure=settings.allow_insecure_registry,
            certificates=RegistryCertificates(
                settings.registry_certificates, has_identity=False
            ),
        ),
        send,
        user_agent,
        None,
        DockerConfig(Path("/nonexistent")),
    )

    def client(access: RegistryAccess) -> Client:
        if not access.is_tenants:
            return clients(access)
        if access.providers or access.secrets:
            message = "a namespaced policy reads registries without credentials"
            raise ExpressionFailed("registry.credentials", message)
        return anonymous(access)

    return client
