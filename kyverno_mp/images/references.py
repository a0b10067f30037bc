"""Follow a reference to a public key: the port to Secrets and key management services.

Room: images. Takes: the text of ``publicKeys``, ``secret`` or ``kms``, providers by
scheme. Gives: PEM text. Next: key_secrets.py, images/verifier.py. May touch: what a
provider may.
Source: docs/behaviour/images 1.2 (references); docs/differences.md.

SAFETY: upstream opens files, environment variables and URLs that the author of a
policy names. Here a reference is followed by the provider of its scheme or not at all;
images/keys.py then says why.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kyverno_mp.errors import DependencyError, ExpressionFailed

KeyProvider: TypeAlias = Callable[[str, str | None, int], str]
"""Takes a reference, the namespace of the namespaced policy that has it (None: a
cluster policy has it) and a deadline; returns the key as PEM.

Raises: ExpressionFailed, DependencyError.
"""
KeyProviders: TypeAlias = Mapping[str, KeyProvider]
"""By scheme: ``k8s``, ``awskms``, ``gcpkms``, ..."""
NO_PROVIDERS: Final[KeyProviders] = {}


def referenced_key(
    text: str, tenant: str | None, providers: KeyProviders, deadline_ns: int
) -> str:
    """Return the key that a provider reads; any other text is returned unchanged.

    ``tenant``: the namespace of the namespaced policy that has the reference, None for
    a cluster policy. Raises: ExpressionFailed, DependencyError.
    """
    scheme, colon, _ = text.strip().partition(":")
    provider = providers.get(scheme) if colon else None
    if provider is None:
        return text
    try:
        return provider(text.strip(), tenant, deadline_ns)
    except (ExpressionFailed, DependencyError) as error:
        message = f"failed to load public key from {text.strip()}: {error.message}"
        raise type(error)(error.code, message) from error
