"""Resolve references to public keys: the port to key management services.

Room: images. Takes: the text of ``publicKeys`` or ``kms``, providers by scheme. Gives:
PEM text. Next: images/verifier.py. May touch: the network through a provider.
Source: docs/behaviour/images 1.2 (references); docs/differences.md.

SAFETY: upstream reads files, environment variables and URLs chosen by the author of a
policy. Here only the provider for its scheme resolves a reference. Without a provider,
images/keys.py reports an error.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

KeyProvider: TypeAlias = Callable[[str, int], str]
"""Takes a reference and a deadline; returns the key as PEM. Raises: ExpressionFailed,
DependencyError.
"""
KeyProviders: TypeAlias = Mapping[str, KeyProvider]
"""Providers by scheme: ``awskms``, ``gcpkms``, ..."""
NO_PROVIDERS: Final[KeyProviders] = {}


def referenced_key(text: str, providers: KeyProviders, deadline_ns: int) -> str:
    """Return the key from the reference's provider; return other text unchanged.

    Raises: ExpressionFailed, DependencyError.
    """
    scheme, colon, _ = text.strip().partition(":")
    provider = providers.get(scheme) if colon else None
    return text if provider is None else provider(text.strip(), deadline_ns)
