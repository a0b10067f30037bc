"""Follow a reference to a public key: the port to key management services.

Room: images. Takes: the text of ``publicKeys`` or ``kms``, providers by scheme. Gives:
PEM text. Next: images/verifier.py. May touch: what a provider may.
Source: docs/behaviour/images 1.2 (references); docs/differences.md.

SAFETY: upstream opens files, environment variables and URLs that the author of a
policy names. Here a reference is followed by the provider of its scheme or not at all;
images/keys.py then says why.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

KeyProvider: TypeAlias = Callable[[str, int], str]
"""Takes a reference and a deadline; gives the key as PEM. Raises: ExpressionFailed,
DependencyError."""
KeyProviders: TypeAlias = Mapping[str, KeyProvider]
"""By scheme: ``awskms``, ``gcpkms``, ..."""
NO_PROVIDERS: Final[KeyProviders] = {}


def referenced_key(text: str, providers: KeyProviders, deadline_ns: int) -> str:
    """Return the key that a provider has; any other text as it is.

    Raises: ExpressionFailed, DependencyError.
    """
    scheme, colon, _ = text.strip().partition(":")
    provider = providers.get(scheme) if colon else None
    return text if provider is None else provider(text.strip(), deadline_ns)
