"""Select an attestor's trust root: its own TUF repository or the common one.

Room: images. Takes: TufQuery, the common TrustRoot, Fetches for mirrors. Gives:
PolicyTrust. Next: review.py. May touch: the network through the Fetches.
Source: docs/behaviour/images 8; Kyverno pkg/image/verifiers/ivpol/cosign/opts.go.

SAFETY: unlike in upstream's client, the first attestor's repository is not used for all
others, and no file or URL in a policy is read as a root.
"""

import threading
from typing import Final, Protocol

from kyverno_mp.images.documents import base64_bytes
from kyverno_mp.images.keys import failed
from kyverno_mp.images.sigstore.trust_root import (
    PUBLIC_MIRROR,
    Fetch,
    TufTrustRoot,
    public_root,
)
from kyverno_mp.images.terms import TrustRoot
from kyverno_mp.limits import IMAGE_TRUST_BYTES_MAX, IMAGE_TRUST_ROOTS_MAX
from kyverno_mp.program.image_policies.ports import TufQuery

_SCHEMES: Final = ("https://", "http://")


class PolicyRoot(TrustRoot, Protocol):
    """A trust root with a check of its readability."""

    def check(self, deadline_ns: int) -> None:
        """Require that the root can be read. Raises: ExpressionFailed."""


class PolicyTrust:
    """The trust roots of one process; threads may share it."""

    def __init__(
        self, common: PolicyRoot, fetch: Fetch, tenants_fetch: Fetch | None = None
    ) -> None:
        """``tenants_fetch`` reads for namespaced policies, None = ``fetch``."""
        self._common = common
        self._fetch = fetch
        self._tenants_fetch = tenants_fetch or fetch
        self._known: dict[tuple[str, str, bool], TufTrustRoot] = {}
        self._lock = threading.Lock()

    def root(self, asked: TufQuery | None, *, is_tenants: bool) -> PolicyRoot:
        """Return the trust root of an attestor. Raises: ExpressionFailed."""
        if asked is None or asked == TufQuery():
            return self._common
        if asked.path:
            text = "the path of a TUF root is not read; give root.data"
            raise failed(f"Failed to read alternate TUF root file {asked.path}: {text}")
        if asked.mirror and not asked.mirror.startswith(_SCHEMES):
            raise failed(f"Failed to initialize TUF client from {asked.mirror}")
        key = (asked.mirror, asked.root, is_tenants)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                if len(self._known) >= IMAGE_TRUST_ROOTS_MAX:
                    self._known.clear()
                fetch = self._tenants_fetch if is_tenants else self._fetch
                mirror = asked.mirror or PUBLIC_MIRROR
                found = TufTrustRoot(mirror, _first(asked.root), fetch)
                self._known[key] = found
        return found


def _first(data: str) -> bytes:
    if not data:
        return public_root()
    root = base64_bytes(data)
    if root is None or len(root) > IMAGE_TRUST_BYTES_MAX:
        raise failed("Failed to base64 decode TUF root")
    return root
