"""Resolve references to public keys: the port to Secrets and key management services.

Room: images. Takes: the text of ``publicKeys``, ``secret`` or ``kms``, providers by
scheme. Gives: PEM text. Next: key_secrets.py, images/verifier.py. May touch: the
network through a provider.
Source: docs/behaviour/images 1.2 (references); docs/differences.md.

SAFETY: upstream reads files, environment variables and URLs chosen by the author of a
policy. Here only the provider for its scheme resolves a reference. Without a provider,
images/keys.py reports an error.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kyverno_mp.errors import DependencyError, ExpressionFailed

KeyProvider: TypeAlias = Callable[[str, str | None, int], str]
"""Takes a reference, the namespace of a namespaced policy (None: a cluster policy) and
a deadline; returns the key as PEM. Raises: ExpressionFailed, DependencyError.
"""
KeyProviders: TypeAlias = Mapping[str, KeyProvider]
"""Providers by scheme: ``k8s``, ``awskms``, ``gcpkms``, ..."""
NO_PROVIDERS: Final[KeyProviders] = {}


def referenced_key(
    reference: str, tenant: str | None, providers: KeyProviders, deadline_ns: int
) -> str:
    """Return the key from the reference's provider; return other text unchanged.

    ``tenant``: the namespace of the namespaced policy that has the reference, None for
    a cluster policy. Raises: ExpressionFailed, DependencyError.
    """
    scheme, colon, _ = reference.strip().partition(":")
    provider = providers.get(scheme) if colon else None
    if provider is None:
        return reference
    try:
        return provider(reference.strip(), tenant, deadline_ns)
    except (ExpressionFailed, DependencyError) as error:
        message = f"failed to load public key from {reference.strip()}: {error.message}"
        raise type(error)(error.code, message) from error
