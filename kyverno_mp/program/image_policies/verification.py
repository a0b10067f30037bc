"""Verify images for the expressions of one policy on one object.

Room: program. Takes: a policy's references and attestations, PolicyImages. Gives:
Verification, the ImageVerifier of expr. Next: evaluate.py.
May touch: registries, through the port.
Source: Kyverno pkg/cel/libs/imageverify/impl.go; docs/behaviour/cel 10.4;
docs/behaviour/images 8.

Verified attestations are kept per policy: an attestation that another policy verified
with other attestors proves nothing here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.expr.cel.functions.kyverno.image_verification import Attestor
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.image_policies import AttestationIR
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    ImageQuery,
    NotaryQuery,
    PolicyImages,
)
from kyverno_mp.program.image_policies.references import References
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.values.jsonvalue import Json

_PAYLOAD: Final = "failed to get payload"


class PolicyTerms(NamedTuple):
    """Parts of a policy that concern images."""

    references: References
    attestations: Mapping[str, AttestationIR]
    access: RegistryAccess
    namespace: str = ""
    """That of a namespaced policy."""


class Verification:
    """The functions of one policy; ``reasons``: why attestors were rejected."""

    def __init__(
        self,
        terms: PolicyTerms,
        images: PolicyImages | None,
        runtime: Runtime,
        verified: dict[str, bool],
    ) -> None:
        """``images`` is None if no registry is available.

        ``verified``: the images that a policy of this request has tried to verify.
        """
        self._terms = terms
        self._verified = verified
        self._images = images
        self._runtime = runtime
        self._statements: dict[tuple[str, str], Json] = {}
        self._referrers: dict[tuple[str, str], str] = {}
        self.reasons: list[str] = []

    def load(self, image: str) -> None:
        """Read an image. Raises: ExpressionFailed, DependencyError."""
        self._port().data(self._asked(image), self._deadline_ns)

    def digest(self, image: str) -> str:
        """Return the digest of an image. Raises: ExpressionFailed, DependencyError."""
        data = self._port().data(self._asked(image), self._deadline_ns)
        digest: str = data["digest"]
        return digest

    def load_ahead(self, images: Sequence[str]) -> None:
        """Read several images in parallel; ``load`` reports their errors later.

        Raises: DeadlinePassed.
        """
        port, deadline_ns = self._images, self._deadline_ns
        if port is None or len(images) <= 1:
            return

        def part(image: str) -> None:
            with suppress(ExpressionFailed, DependencyError):
                port.data(self._asked(image), deadline_ns)

        port.at_once([partial(part, image) for image in images], deadline_ns)

    def signatures(self, image: str, attestors: Sequence[Attestor]) -> int:
        """Return how many attestors have signed the image. Raises: CelFailed."""
        queries = [(attestor.name, _query(attestor)) for attestor in attestors]
        if not self._is_selected(image):
            return 0
        image_query, count = self._asked(image), 0
        for name, query in queries:
            self._read(image)

            verify = partial(self._port().verify, image_query, query, self._deadline_ns)
            count += self._holds(f"attestor {name}: {image}", verify)
        return self._noted(image, count, queries)

    def attestations(
        self, image: str, attestation: str, attestors: Sequence[Attestor]
    ) -> int:
        """Return how many attestors made the attestation. Raises: CelFailed."""
        queries = [(attestor.name, _query(attestor)) for attestor in attestors]
        if not self._is_selected(image):
            return 0
        count = 0
        for name, query in queries:
            declared = self._attestation(attestation)
            self._read(image)

            verify = partial(self._attest, image, declared, query)
            subject = f"attestation {attestation}, attestor {name}: {image}"
            count += self._holds(subject, verify)
        return self._noted(image, count, queries)

    def payload(self, image: str, attestation: str) -> Json:
        """Return the payload of a verified attestation. Raises: CelFailed."""
        declared = self._attestation(attestation)
        self._read(image)
        if declared.intoto is not None:
            return self._statement(image, declared.intoto)
        if declared.referrer is None:
            raise CelFailed(f"{_PAYLOAD}: could not find attestation {declared.name}")
        digest = self._referrers.get((image, declared.referrer))
        if digest is None:
            # SAFETY: upstream returns the first referrer of the type, even if the
            # attestor did not sign it (docs/behaviour/images 10.2, issue 17130).
            raise CelFailed(
                f"{_PAYLOAD}: referrer attestation payload cannot be fetch before"
                " verifying referrer attestation"
            )
        image_query = self._asked(image)
        return _called(
            _PAYLOAD,
            lambda: self._port().document(image_query, digest, self._deadline_ns),
        )

    def data(self, image: str) -> Json:
        """Return the image's manifest and configuration. Raises: CelFailed."""
        return self._read(image)

    def _statement(self, image: str, kind: str) -> Json:
        # KYVERNO: keys are full predicate types, so a short name is never found.
        statement = self._statements.get((image, kind))
        if statement is None:
            raise CelFailed(
                f"{_PAYLOAD}: intoto attestation payload cannot be fetch before"
                " verifying intoto attestation"
            )
        return statement

    def _attest(
        self, image: str, attestation: AttestationIR, query: AttestorQuery
    ) -> None:
        port, image_query = self._port(), self._asked(image)
        if isinstance(query, NotaryQuery):
            if attestation.referrer is None:
                raise CelFailed(
                    "notary verifier only supports oci 1.1 referrers as attestations"
                )
            digest = port.referrer(
                image_query, query, attestation.referrer, self._deadline_ns
            )
            self._referrers[image, attestation.referrer] = digest
            return
        assert isinstance(query, CosignQuery)
        if attestation.intoto is None:
            message = "cosign verifier only supports intoto referrers as attestations"
            raise ExpressionFailed("image.attestation", message)
        for kind, payload in port.statements(
            image_query, query, attestation.intoto, self._deadline_ns
        ):
            # KYVERNO: the last of several statements of a type is used.
            self._statements[image, kind] = payload

    def _holds(self, subject: str, verify: Callable[[], None]) -> bool:
        """Return whether the verification succeeds.

        KYVERNO: a failed attestor is not counted, even if a registry or a log caused
        the failure (docs/behaviour/cel 10.4). Raises: CelFailed, DeadlinePassed.
        """
        try:
            verify()
        except DeadlinePassed:
            # SAFETY: a review that runs out of time must not return a verdict.
            raise
        except (ExpressionFailed, DependencyError) as error:
            self.reasons.append(f"{subject}: {error.message}")
            return False
        return True

    def _noted(self, image: str, count: int, queries: Sequence[Any]) -> int:
        """Note whether an image is verified; a later failure does not undo it."""
        if queries:
            self._verified[image] = self._verified.get(image, False) or count > 0
        return count

    def _attestation(self, name: str) -> AttestationIR:
        attestation = self._terms.attestations.get(name)
        if attestation is None:
            raise CelFailed(f"attestation not found in policy: {name}")
        return attestation

    def _is_selected(self, image: str) -> bool:
        try:
            return self._terms.references.select(image, self._runtime)
        except ExpressionFailed as error:
            raise CelFailed(error.message) from error

    def _read(self, image: str) -> Mapping[str, Json]:
        image_query = self._asked(image)
        data: Mapping[str, Json] = _called(
            "failed to get imagedata",
            lambda: self._port().data(image_query, self._deadline_ns),
        )
        return data

    def _asked(self, image: str) -> ImageQuery:
        return ImageQuery(image, self._terms.access, self._terms.namespace)

    def _port(self) -> PolicyImages:
        if self._images is None:
            message = "there is no registry to ask"
            raise ExpressionFailed("image.registry", message)
        return self._images

    @property
    def _deadline_ns(self) -> int:
        return self._runtime.deadline_ns


def _query(attestor: Attestor) -> AttestorQuery:
    query: AttestorQuery = attestor.terms()
    return query


def _called(prefix: str, call: Callable[[], Json]) -> Json:
    """Call a port, and convert its error to the expression's error.

    Raises: CelFailed; DeadlinePassed, which no expression can catch.
    """
    try:
        return call()
    except DeadlinePassed:
        raise
    except (ExpressionFailed, DependencyError) as error:
        raise CelFailed(f"{prefix}: {error.message}") from error
