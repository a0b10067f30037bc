"""Select an attestor's trust root: its JSON, its TUF repository or the common one.

Room: images. Takes: TufQuery, the common TrustRoot, Fetches for mirrors. Gives:
PolicyTrust. Next: review.py. May touch: the network through the Fetches.
Source: docs/behaviour/images 8; Kyverno pkg/image/verifiers/ivpol/cosign/opts.go at
v1.18.2 and (trusted root) v1.19.0.

SAFETY: unlike in upstream's client, the first attestor's repository is not used for all
others, and no file or URL in a policy is read as a root.
"""

import threading
from collections.abc import Sequence
from typing import Final, Protocol

from cryptography import x509

from kyverno_mp.images.bundles.material import Material, parse_material
from kyverno_mp.images.documents import base64_bytes
from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.sigstore.logkeys import LogKeys
from kyverno_mp.images.sigstore.trust_root import (
    PUBLIC_MIRROR,
    Fetch,
    TufTrustRoot,
    public_root,
)
from kyverno_mp.images.terms import TrustRoot
from kyverno_mp.limits import (
    IMAGE_TRUST_BYTES_MAX,
    IMAGE_TRUST_ROOTS_MAX,
    IMAGE_TRUSTED_ROOT_BYTES_MAX,
)
from kyverno_mp.program.image_policies.ports import TufQuery

_SCHEMES: Final = ("https://", "http://")


class PolicyRoot(TrustRoot, Protocol):
    """A trust root with a check of its readability."""

    def check(self, deadline_ns: int) -> None:
        """Require that the root can be read. Raises: ExpressionFailed."""


class GivenRoot:
    """A trusted root that a policy contains, as JSON."""

    def __init__(self, document: str) -> None:
        """Read the root. Raises: ExpressionFailed."""
        self._data = document.encode(errors="replace")
        self._material = _material(self._data)

    def check(self, _deadline_ns: int) -> None:
        """Do nothing: the root was read."""

    def fulcio_roots(self, _deadline_ns: int) -> Sequence[x509.Certificate]:
        """Return the roots of the certificate authorities."""
        return [
            root for authority in self._material.authorities for root in authority.roots
        ]

    def rekor_keys(self, _deadline_ns: int) -> LogKeys:
        """Return the keys of the transparency logs."""
        return self._material.logs

    def ctlog_keys(self, _deadline_ns: int) -> LogKeys:
        """Return the keys of the certificate logs."""
        return self._material.ctlogs

    def target(self, _name: str, _deadline_ns: int) -> bytes:
        """Return the JSON."""
        return self._data


def _material(data: bytes) -> Material:
    size = len(data)
    if size > IMAGE_TRUSTED_ROOT_BYTES_MAX:
        message = (
            f"inline trustedRoot JSON is too large ({size} bytes), maximum allowed is"
            f" {IMAGE_TRUSTED_ROOT_BYTES_MAX} bytes"
        )
        raise failed(f"failed to resolve trusted material: {message}")
    prefix = "failed to resolve trusted material: parsing inline trustedRoot JSON"
    if not data:
        # SAFETY: upstream then trusts the common root, which the policy replaces.
        raise failed(f"{prefix}: it is empty")
    try:
        return parse_material(data)
    except Unproved as error:
        raise failed(f"{prefix}: {error}") from None


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

    def root(
        self,
        tuf_query: TufQuery | None,
        *,
        is_tenants: bool,
        trusted_root: str | None = None,
    ) -> PolicyRoot:
        """Return the trust root of an attestor. Raises: ExpressionFailed.

        ``trusted_root``: a trusted root as JSON, which takes precedence.
        """
        if trusted_root is not None:
            return GivenRoot(trusted_root)
        if tuf_query is None or tuf_query == TufQuery():
            return self._common
        if tuf_query.path:
            message = "the path of a TUF root is not read; give root.data"
            raise failed(
                f"Failed to read alternate TUF root file {tuf_query.path}: {message}"
            )
        # SAFETY: otherwise the names of the repository's files could be a query.
        has_query = "?" in tuf_query.mirror or "#" in tuf_query.mirror
        if has_query or (
            tuf_query.mirror and not tuf_query.mirror.startswith(_SCHEMES)
        ):
            raise failed(f"Failed to initialize TUF client from {tuf_query.mirror}")
        key = (tuf_query.mirror, tuf_query.root, is_tenants)
        with self._lock:
            root = self._known.get(key)
            if root is None:
                if len(self._known) >= IMAGE_TRUST_ROOTS_MAX:
                    self._known.clear()
                fetch = self._tenants_fetch if is_tenants else self._fetch
                mirror = tuf_query.mirror or PUBLIC_MIRROR
                root = TufTrustRoot(mirror, _first(tuf_query.root), fetch)
                self._known[key] = root
        return root


def _first(data: str) -> bytes:
    if not data:
        return public_root()
    root = base64_bytes(data)
    if root is None or len(root) > IMAGE_TRUST_BYTES_MAX:
        raise failed("Failed to base64 decode TUF root")
    return root
