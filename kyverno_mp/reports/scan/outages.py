"""Note registry outages during the verification of an object's images.

Room: reports. Takes: the ports to images of one review. Gives: Noted, NotedReview,
NotedPolicyImages. Next: reports/scan/images.py. May touch: what the ports can access.
Source: docs/reports.md (images).

An unavailable registry proves neither that an image is signed nor that it is not. The
result is an error in the report, and is retried.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kyverno_mp.errors import DependencyError
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    ImageQuery,
    NotaryQuery,
    PolicyImages,
)
from kyverno_mp.program.ports import RegistryAccess, ReviewedImages, SignatureQuery
from kyverno_mp.values.jsonvalue import Json

T = TypeVar("T")


class Noted:
    """The reason why a registry could not be read; "" if all could be read."""

    def __init__(self) -> None:
        self.problem = ""

    def call(self, read: Callable[[], T]) -> T:
        """Call ``read``, and note an outage. Raises: the errors of ``read``."""
        try:
            return read()
        except DependencyError as error:
            self.problem = self.problem or error.message
            raise


class NotedReview:
    """The images of a review, for rules with verifyImages."""

    def __init__(self, images: ReviewedImages, noted: Noted) -> None:
        self._images = images
        self._noted = noted

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest of an image. Raises: see ReviewedImages."""
        return self._noted.call(lambda: self._images.digest(image, access, deadline_ns))

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor signed. Raises: see ReviewedImages."""
        return self._noted.call(
            lambda: self._images.verify(signature_query, deadline_ns)
        )

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the attestor's statements. Raises: see ReviewedImages."""
        return self._noted.call(
            lambda: self._images.statements(signature_query, deadline_ns)
        )

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts concurrently. Raises: the errors of the parts."""
        self._images.at_once(parts, deadline_ns)


class NotedPolicyImages:
    """The images of a review, for ImageValidatingPolicies."""

    def __init__(self, images: PolicyImages, noted: Noted) -> None:
        self._images = images
        self._noted = noted

    def data(self, image_query: ImageQuery, deadline_ns: int) -> Mapping[str, Json]:
        """Return manifest and configuration. Raises: see PolicyImages."""
        return self._noted.call(lambda: self._images.data(image_query, deadline_ns))

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts concurrently. Raises: the errors of the parts."""
        self._images.at_once(parts, deadline_ns)

    def verify(
        self, image_query: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require a signature. Raises: see PolicyImages."""
        self._noted.call(
            lambda: self._images.verify(image_query, attestor, deadline_ns)
        )

    def statements(
        self,
        image_query: ImageQuery,
        attestor: CosignQuery,
        kind: str,
        deadline_ns: int,
    ) -> Sequence[tuple[str, Json]]:
        """Return the attestor's statements. Raises: see PolicyImages."""
        return self._noted.call(
            lambda: self._images.statements(image_query, attestor, kind, deadline_ns)
        )

    def referrer(
        self,
        image_query: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of a signed artefact. Raises: see PolicyImages."""
        return self._noted.call(
            lambda: self._images.referrer(
                image_query, attestor, artifact_type, deadline_ns
            )
        )

    def document(self, image_query: ImageQuery, digest: str, deadline_ns: int) -> Json:
        """Return the JSON document in an artefact. Raises: see PolicyImages."""
        return self._noted.call(
            lambda: self._images.document(image_query, digest, deadline_ns)
        )
