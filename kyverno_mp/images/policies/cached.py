"""Cache the results of ImageValidatingPolicies' attestors for all workers of a pod.

Room: images. Takes: PolicyReview, the pod's ImageCache. Gives: CachedPolicyReview, the
PolicyImages of program/image_policies. Next: webhook/images.py.
May touch: files and the network through its parts.
Source: docs/behaviour/images 10.2 (a result is bound to the digest and to the whole
attestor).

A failure is never cached, and an image is resolved and read for each review.
Expressions are evaluated each time.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from kyverno_mp.images.cache import ImageCache
from kyverno_mp.images.policies.review import PolicyReview
from kyverno_mp.images.serving import OnVerified, timed
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    ImageQuery,
    NotaryQuery,
)
from kyverno_mp.values.jsonvalue import Json

_VERSION: Final = 1
"""Version of the format of the entries."""


class CachedPolicyReview:
    """The images of one review."""

    def __init__(
        self, review: PolicyReview, cache: ImageCache | None, on_verified: OnVerified
    ) -> None:
        self._review = review
        self._cache = cache
        self._on_verified = on_verified
        self.data = review.data
        self.document = review.document
        self.at_once = review.at_once

    def verify(
        self, image_query: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require that the attestor has signed the image. Raises: as PolicyImages."""

        def verified(attestor: AttestorQuery) -> Json:
            self._review.verify(image_query, attestor, deadline_ns)
            return True

        self._once(("signature",), image_query, attestor, deadline_ns, verified)

    def statements(
        self,
        image_query: ImageQuery,
        attestor: CosignQuery,
        kind: str,
        deadline_ns: int,
    ) -> Sequence[tuple[str, Json]]:
        """Return the attestor's statements. Raises: as PolicyImages."""

        def verified(attestor: AttestorQuery) -> Json:
            assert isinstance(attestor, CosignQuery)
            statements = self._review.statements(
                image_query, attestor, kind, deadline_ns
            )
            return [list(statement) for statement in statements]

        task = ("statements", kind)
        statements = self._once(task, image_query, attestor, deadline_ns, verified)
        return [(statement[0], statement[1]) for statement in statements]

    def referrer(
        self,
        image_query: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of a signed artefact. Raises: as PolicyImages."""

        def verified(attestor: AttestorQuery) -> Json:
            assert isinstance(attestor, NotaryQuery)
            return self._review.referrer(
                image_query, attestor, artifact_type, deadline_ns
            )

        task = ("referrer", artifact_type)
        return str(self._once(task, image_query, attestor, deadline_ns, verified))

    def _once(
        self,
        task: tuple[str, ...],
        image_query: ImageQuery,
        attestor: AttestorQuery,
        deadline_ns: int,
        verified: Callable[[AttestorQuery], Json],
    ) -> Json:
        # The image is read first, because verification needs its digest.
        repository, digest = self._review.place(image_query, deadline_ns)
        # SAFETY: a result is bound to the key, not to the name of a Secret.
        attestor = self._review.with_key(image_query, attestor, deadline_ns)
        measured = timed(lambda: verified(attestor), self._on_verified)
        if self._cache is None:
            return measured()
        form = type(attestor).__name__
        bound = [
            "policies",
            _VERSION,
            task,
            repository,
            digest,
            image_query.access,
            form,
        ]
        key = hashlib.sha256(
            msgspec.json.encode([*bound, attestor], order="deterministic")
        ).digest()
        return self._cache.once(key, deadline_ns, measured, self._review.valid_s)
