"""Verify images for the rules of one review: attestor by attestor.

Room: images. Takes: SignatureQueries of rules, registry clients. Gives: digests and
statements. Next: program/images.
May touch: the network through images/artifacts.py; the clock that it is given.
Source: docs/behaviour/images 2.4, 3; docs/behaviour/lessons 4.2 row 1.

A tag is resolved once per review; what is verified and what is written into the object
is that digest.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from time import monotonic_ns

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    InputError,
)
from kyverno_mp.images.artifacts import NOT_FOUND, Artifacts, parsed
from kyverno_mp.images.cosign import (
    Layer,
    check_annotations,
    verified_payloads,
    verified_statements,
)
from kyverno_mp.images.keys import Check, failed, load_certificate_key, load_key
from kyverno_mp.program.ports import RegistryAccess, SignatureQuery
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json


class ImageReview:
    """The images of one review."""

    def __init__(
        self,
        client: Callable[[RegistryAccess], Client],
        now: Callable[[], datetime],
        deadline_ns: Callable[[int], int],
    ) -> None:
        """``deadline_ns``: returns the end of one read within a review's deadline."""
        self._client = client
        self._now = now
        self._deadline_ns = deadline_ns
        self._digests: dict[tuple[str, RegistryAccess], str] = {}

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest, resolved once.

        Raises: ExpressionFailed, DependencyError.
        """
        # SAFETY: another access may read another image, or none.
        found = self._digests.get((image, access))
        if found is None:
            artifacts = Artifacts(self._client(access))
            found = artifacts.digest(image, self._deadline_ns(deadline_ns))
            self._digests[image, access] = found
        return found

    def known_digest(self, image: str, access: RegistryAccess) -> str:
        """Return the digest if this review has resolved it, else ""."""
        return self._digests.get((image, access), "")

    def keep_digest(self, image: str, access: RegistryAccess, digest: str) -> None:
        """Use a digest that was resolved at the same time for another review."""
        self._digests[image, access] = digest

    def verify(self, asked: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed.

        Raises: ExpressionFailed with upstream's text, DependencyError.
        """
        key = _check(asked)
        place, digest = self._located(asked, deadline_ns)
        layers: list[Layer] = []
        artifacts = Artifacts(self._client(asked.access))
        until = self._deadline_ns(deadline_ns)
        check = _in_time(key, until)
        if asked.oci11:
            # KYVERNO: a failure of referrers falls back to the tag silently.
            with suppress(InputError, DependencyError):
                layers = artifacts.referrers(place, digest, until)
                if layers:
                    return self._verified(layers, digest, check, asked)
        layers = artifacts.signatures(place, digest, "sig", until)
        return self._verified(layers, digest, check, asked)

    def _verified(
        self,
        layers: Sequence[Layer],
        digest: str,
        check: Check,
        asked: SignatureQuery,
    ) -> str:
        payloads = verified_payloads(layers, digest, check, self._now())
        check_annotations(payloads, asked.annotations)
        return digest

    def statements(
        self, asked: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the statements about the image that the attestor has signed.

        Raises: ExpressionFailed with upstream's text, DependencyError.
        """
        key = _check(asked)
        place, digest = self._located(asked, deadline_ns)
        artifacts = Artifacts(self._client(asked.access))
        until = self._deadline_ns(deadline_ns)
        check = _in_time(key, until)
        layers = artifacts.signatures(place, digest, "att", until)
        found = verified_statements(layers, digest, check, self._now())
        if asked.annotations:
            # KYVERNO: an envelope has no annotations, so a demand for some fails.
            check_annotations([], asked.annotations)
        return found

    def _located(
        self, asked: SignatureQuery, deadline_ns: int
    ) -> tuple[Reference, str]:
        """Return the repository of the signatures, and the image's digest."""
        place = parsed(asked.image)
        if asked.repository:
            text = f"failed to parse signature repository {asked.repository}"
            try:
                place = parsed(asked.repository)
            except ExpressionFailed as error:
                raise failed(text) from error
        try:
            digest = self.digest(asked.image, asked.access, deadline_ns)
        except ExpressionFailed as error:
            if error.code != NOT_FOUND:
                raise
            raise failed(f"image tag not found: {error.message}") from error
        return place, digest


def _in_time(check: Check, until_ns: int) -> Check:
    """Return a check that raises DeadlinePassed after the deadline."""

    def timed(signature: bytes, data: bytes) -> str:
        if monotonic_ns() > until_ns:
            raise DeadlinePassed(
                "images.deadline", "the signatures were not checked in time"
            )
        return check(signature, data)

    return timed


def _check(asked: SignatureQuery) -> Check:
    if asked.key:
        return load_key(asked.key, asked.algorithm)
    if asked.certificate:
        return load_certificate_key(asked.certificate, asked.algorithm)
    # SAFETY: an attestor without a key would mean "signed by anyone".
    raise failed("the attestor names no key and no certificate")
