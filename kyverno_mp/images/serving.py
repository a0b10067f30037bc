"""Verify images for a running service's reviews, with shared results and reads.

Room: images. Takes: ImageReview for one review, the pod's ImageCache. Gives: the ports
of verifyImages rules and of imageRegistry entries. Next: webhook/images.py.
May touch: the network and files through its parts, the clock.
Source: docs/behaviour/images 2.8, 10.2; docs/behaviour/engine 3.7 (imageRegistry).

A cached result is bound to the digest, the repository and the whole attestor, so a
moved tag or another key is another entry; a tag is resolved for each review. Conditions
are not cached: rules evaluate them on the statements each time.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from time import monotonic_ns
from typing import Final

import msgspec

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    RequestInvalid,
)
from kyverno_mp.images.artifacts import parsed
from kyverno_mp.images.cache import ImageCache
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.limits import IMAGE_DIGESTS_KEPT_MAX, IMAGE_DIGESTS_KEPT_S
from kyverno_mp.program.ports import RegistryAccess, SignatureQuery
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.image import image_data
from kyverno_mp.values.jsonvalue import Json

NO_ACCESS: Final = RegistryAccess()
_VERSION: Final = 3
"""Version of the format of the entries."""
OnVerified = Callable[[tuple[str, ...], float], None]
Flights = dict[tuple[str, RegistryAccess], "Future[str]"]
"""The running look-ups of tags in this process."""


class Digests:
    """Digests of resolved tags; threads may share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, RegistryAccess], tuple[str, int]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()

    def get(self, image: str, access: RegistryAccess) -> str:
        """Return the digest, "" if it is not cached."""
        digest, until_ns = self._known.get((image, access), ("", 0))
        return digest if monotonic_ns() < until_ns else ""

    def put(self, image: str, access: RegistryAccess, digest: str) -> None:
        """Cache a digest for a limited time."""
        until_ns = monotonic_ns() + IMAGE_DIGESTS_KEPT_S * 10**9
        with self._lock:
            self._known[image, access] = digest, until_ns
            self._known.move_to_end((image, access))
            if len(self._known) > IMAGE_DIGESTS_KEPT_MAX:
                self._known.popitem(last=False)


def timed(verified: Callable[[], Json], on_verified: OnVerified) -> Callable[[], Json]:
    """Wrap a verification so that its duration and outcome are reported."""

    def measured() -> Json:
        begin_ns, word = monotonic_ns(), "failed"
        try:
            value = verified()
            word = "verified"
        except DependencyError:
            word = "unavailable"
            raise
        finally:
            on_verified((word,), (monotonic_ns() - begin_ns) / 1e9)
        return value

    return measured


class ServedReview:
    """The images of one review."""

    def __init__(
        self,
        review: ImageReview,
        cache: ImageCache | None,
        flights: Flights,
        lock: threading.Lock,
        digests: Digests | None = None,
        on_verified: OnVerified = lambda _labels, _seconds: None,
    ) -> None:
        """``flights`` and ``lock`` are shared by the reviews of this process.

        ``digests`` is for scans, which do not have to resolve each tag for each object.
        """
        self._kept = digests
        self._on_verified = on_verified
        self._review = review
        self._cache = cache
        self._flights = flights
        self._lock = lock

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest, resolved once.

        Concurrent reviews of the same image share one read, but not its failure.
        Raises: ExpressionFailed, DependencyError.
        """
        kept_digest = self._review.known_digest(image, access)
        if not kept_digest and self._kept is not None and "@" not in image:
            kept_digest = self._kept.get(image, access)
            if kept_digest:
                self._review.keep_digest(image, access, kept_digest)
        if kept_digest or "@" in image:
            return kept_digest or self._review.digest(image, access, deadline_ns)
        key = (image, access)
        with self._lock:
            other_flight = self._flights.get(key)
            if other_flight is None:
                flight = self._flights[key] = Future()
        if other_flight is not None:
            digest = _shared(other_flight, deadline_ns)
            if digest:
                self._review.keep_digest(image, access, digest)
                return digest
            return self._review.digest(image, access, deadline_ns)
        digest = ""
        try:
            digest = self._review.digest(image, access, deadline_ns)
            if self._kept is not None:
                self._kept.put(image, access, digest)
        finally:
            with self._lock:
                del self._flights[key]
            flight.set_result(digest)
        return digest

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed. Raises: as ``digest``."""
        # SAFETY: a result is bound to the key, not to the name of a Secret.
        signature_query = self._review.with_key(signature_query, deadline_ns)

        def verified() -> Json:
            return self._review.verify(signature_query, deadline_ns)

        return str(
            self._once(
                "signature",
                signature_query,
                deadline_ns,
                timed(verified, self._on_verified),
            )
        )

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the attestor's statements about the image. Raises: as ``digest``."""
        signature_query = self._review.with_key(signature_query, deadline_ns)

        def verified() -> Json:
            return list(self._review.statements(signature_query, deadline_ns))

        statements: list[dict[str, Json]] = self._once(
            "statements",
            signature_query,
            deadline_ns,
            timed(verified, self._on_verified),
        )
        return statements

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts concurrently."""
        self._review.at_once(parts, deadline_ns)

    def _once(
        self,
        kind: str,
        signature_query: SignatureQuery,
        deadline_ns: int,
        verified: Callable[[], Json],
    ) -> Json:
        cache = self._cache
        key = (
            self._key(kind, signature_query, deadline_ns)
            if cache and signature_query.use_cache
            else None
        )
        if cache is None or key is None:
            return verified()
        return cache.once(key, deadline_ns, verified, self._review.valid_s)

    def _key(
        self, kind: str, signature_query: SignatureQuery, deadline_ns: int
    ) -> bytes | None:
        """Return the key of a result, None if the image has no digest."""
        try:
            repository = parsed(signature_query.image).place
            digest = self.digest(
                signature_query.image, signature_query.access, deadline_ns
            )
        except ExpressionFailed:
            # Verification will fail as well, with the right message.
            return None
        terms = signature_query._replace(image="", use_cache=True, namespace="")
        bound = [_VERSION, kind, repository, digest, terms]
        return hashlib.sha256(
            msgspec.json.encode(bound, order="deterministic")
        ).digest()


def _shared(flight: "Future[str]", deadline_ns: int) -> str:
    left_s = (deadline_ns - monotonic_ns()) / 1e9 if deadline_ns else None
    try:
        return flight.result(left_s)
    except FutureTimeout as error:
        raise DeadlinePassed(
            "images.deadline", "the image was not resolved in time"
        ) from error


class ServedImageData:
    """Image data for imageRegistry entries, read for each use."""

    def __init__(
        self,
        client: Callable[[RegistryAccess], Client],
        until_ns: Callable[[int], int],
        access: RegistryAccess = NO_ACCESS,
    ) -> None:
        """``access`` is used for all registries."""
        self._client = client
        self._until_ns = until_ns
        self._access = access

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Json:
        """Return the value. Raises: ExpressionFailed, DependencyError."""
        access = self._access
        if is_tenants:
            access = access._replace(is_tenants=True)
        client = self._client(access)
        try:
            return image_data(client, reference, self._until_ns(deadline_ns))
        except RequestInvalid as error:
            raise ExpressionFailed(error.code, error.message) from error
