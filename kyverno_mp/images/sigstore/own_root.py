"""Select a service's TUF repository: the operator's or Sigstore's public one.

Room: images. Takes: Settings, a function that returns a Fetch for a mirror. Gives: a
TrustRoot. Next: webhook/images.py. May touch: the file that a setting names; the
network through the Fetch.
Source: docs/behaviour/images 3.8 (flags); docs/behaviour/controllers 10.1.

The first root metadata is read with the repository. So a changed file takes effect
within a day, and an unreadable file fails images instead of the start.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp.errors import DependencyError, Error
from kyverno_mp.images.keys import failed
from kyverno_mp.images.sigstore.trust_root import (
    PUBLIC_MIRROR,
    Fetch,
    TufTrustRoot,
    public_root,
)
from kyverno_mp.limits import IMAGE_TRUST_BYTES_MAX
from kyverno_mp.settings.settings import Settings

_OK: Final = 200
_URLS: Final = ("https://", "http://")


def trust_root(
    settings: Settings, fetch: Fetch, own_fetch: Callable[[str], Fetch]
) -> TufTrustRoot:
    """Return the trust root of a process.

    ``fetch`` reads the public repository; ``own_fetch`` returns a reader for the
    operator's host.
    """
    if not settings.enable_tuf:
        return TufTrustRoot(PUBLIC_MIRROR, public_root(), fetch)
    mirror = settings.tuf_mirror or PUBLIC_MIRROR

    def first(deadline_ns: int) -> bytes:
        return _first_root(settings, own_fetch, deadline_ns)

    return TufTrustRoot(mirror, first, own_fetch(_host(mirror)))


def _first_root(
    settings: Settings, own_fetch: Callable[[str], Fetch], deadline_ns: int
) -> bytes:
    """Return the first root metadata. Raises: ExpressionFailed, DependencyError."""
    source = settings.tuf_root
    if not source:
        raw = settings.tuf_root_raw
        return base64.b64decode(raw) if raw else public_root()
    try:
        if not source.startswith(_URLS):
            with Path(source).open("rb") as file:
                return file.read(IMAGE_TRUST_BYTES_MAX)
        status, body = own_fetch(_host(source))(source, deadline_ns)
    except DependencyError:
        raise
    except (OSError, Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise failed(f"the TUF root {source} cannot be read: {reason}") from error
    if status != _OK:
        raise failed(f"the TUF root {source} cannot be read: HTTP status {status}")
    return body


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
