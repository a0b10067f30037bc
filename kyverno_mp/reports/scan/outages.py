"""Take note of registries that cannot be read while images of an object are verified.

Room: reports. Takes: the ports to images of one review. Gives: Noted, NotedReview,
NotedPolicyImages. Next: reports/scan/images.py. May touch: what the ports reach.
Source: docs/reports.md (images).

A registry that is down proves nothing about an image: neither that it is signed nor
that it is not. What a rule makes of it is an error in a report, and is tried again.
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
    """Why a registry could not be read; "" if all could be."""

    def __init__(self) -> None:
        self.problem = ""

    def call(self, read: Callable[[], T]) -> T:
        """Read, and take note of an outage. Raises: what ``read`` raises."""
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
        """Return the digest of an image. Raises: as ReviewedImages."""
        return self._noted.call(lambda: self._images.digest(image, access, deadline_ns))

    def verify(self, asked: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed. Raises: as ReviewedImages."""
        return self._noted.call(lambda: self._images.verify(asked, deadline_ns))

    def statements(
        self, asked: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return what the attestor states. Raises: as ReviewedImages."""
        return self._noted.call(lambda: self._images.statements(asked, deadline_ns))

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts. Raises: what a part raises."""
        self._images.at_once(parts, deadline_ns)


class NotedPolicyImages:
    """The images of a review, for ImageValidatingPolicies."""

    def __init__(self, images: PolicyImages, noted: Noted) -> None:
        self._images = images
        self._noted = noted

    def data(self, asked: ImageQuery, deadline_ns: int) -> Mapping[str, Json]:
        """Return manifest and configuration. Raises: as PolicyImages."""
        return self._noted.call(lambda: self._images.data(asked, deadline_ns))

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts. Raises: what a part raises."""
        self._images.at_once(parts, deadline_ns)

    def verify(
        self, asked: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require a signature. Raises: as PolicyImages."""
        self._noted.call(lambda: self._images.verify(asked, attestor, deadline_ns))

    def statements(
        self, asked: ImageQuery, attestor: CosignQuery, kind: str, deadline_ns: int
    ) -> Sequence[tuple[str, Json]]:
        """Return what the attestor states. Raises: as PolicyImages."""
        return self._noted.call(
            lambda: self._images.statements(asked, attestor, kind, deadline_ns)
        )

    def referrer(
        self,
        asked: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of a signed artefact. Raises: as PolicyImages."""
        return self._noted.call(
            lambda: self._images.referrer(asked, attestor, artifact_type, deadline_ns)
        )

    def document(self, asked: ImageQuery, digest: str, deadline_ns: int) -> Json:
        """Return the document of an artefact. Raises: as PolicyImages."""
        return self._noted.call(
            lambda: self._images.document(asked, digest, deadline_ns)
        )
