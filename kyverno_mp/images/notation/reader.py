"""Find an image's Notation signatures and attestations, and verify them.

Room: images. Takes: a registry's Artifacts, references, trusted certificates. Gives:
digests and statements, or errors with upstream's messages. Next:
images/notation/envelope.py.
May touch: the network through images/artifacts.py.
Source: docs/behaviour/images 4 (1, 2, 6, 7).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.images.artifacts import Artifacts, Descriptor, json_object
from kyverno_mp.images.keys import failed, load_certificates
from kyverno_mp.images.notation.envelope import check_envelope
from kyverno_mp.images.notation.records import Refused, Target
from kyverno_mp.limits import IMAGE_NOTARY_SIGNATURES_MAX
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.go.gotext import json_string
from kyverno_mp.values.jsonvalue import Json

_SIGNATURE_TYPE: Final = "application/vnd.cncf.notary.signature"
_PREDICATE_BYTES_MAX: Final = 10_000_000
_END: Final = "-----END CERTIFICATE-----"


def load_trusted(certificate: str, chain: str) -> list[x509.Certificate]:
    """Return the trusted certificates of an attestor. Raises: ExpressionFailed."""
    pem = "\n".join(filter(None, (certificate, chain)))
    if not pem:
        # SAFETY: upstream crashes here. Without certificates, no signer is trusted.
        raise failed("type Notary needs certificates")
    if pem.rpartition(_END)[2].strip():
        raise failed("failed to parse certificates: error during PEM decoding")
    try:
        return load_certificates(pem)
    except ValueError as error:
        raise failed(f"failed to parse certificates: {error}") from error


@dataclass(frozen=True, slots=True)
class NotaryReader:
    """Verifies an image's Notation signatures and attestations.

    ``hold`` gets the time until which a verified signature is valid. ``stamping``: the
    timestamp authorities; if any is given, one must have stamped the signature.
    """

    artifacts: Artifacts
    trusted: Sequence[x509.Certificate]
    now: datetime
    deadline_ns: int
    hold: Callable[[datetime], None] = lambda _at: None
    stamping: Sequence[x509.Certificate] = ()

    def verify(self, reference: Reference, image: Descriptor) -> None:
        """Require a valid signature on the image. Raises: ExpressionFailed."""
        name = f"{reference.place}@{image.digest}"
        target = Target(image.media_type, image.digest, len(image.body))
        reasons: list[str] = []
        digests = [
            str(entry.get("digest"))
            for entry in self.artifacts.referring(
                reference, image.digest, self.deadline_ns
            )
            if entry.get("artifactType") == _SIGNATURE_TYPE
        ]
        for digest in digests[:IMAGE_NOTARY_SIGNATURES_MAX]:
            media_type, blob = self._envelope(reference, digest, name)
            try:
                end = check_envelope(
                    media_type, blob, self.trusted, target, self.now, self.stamping
                )
            except Refused as error:
                reason = f"failed to verify signature with digest {digest}, {error}"
                reasons.append(reason)
            else:
                self.hold(end)
                return
        if not digests:
            raise failed(
                f"no signature is associated with {_quoted(name)}, make sure the"
                " artifact was signed successfully"
            )
        if len(digests) >= IMAGE_NOTARY_SIGNATURES_MAX:
            # KYVERNO: exactly ten signatures also exceed the limit
            # (docs/behaviour/images 4).
            raise failed(
                "signature evaluation stopped. The configured limit of"
                f" {IMAGE_NOTARY_SIGNATURES_MAX} signatures to verify per artifact"
                " exceeded"
            )
        raise failed("\n".join(("signature verification failed", *reasons)))

    def _envelope(
        self, reference: Reference, digest: str, name: str
    ) -> tuple[str, bytes]:
        """Return media type and bytes of the first layer of a signature manifest."""
        try:
            manifest = self.artifacts.document(reference, digest, self.deadline_ns)
            layers = json_object(manifest.body, digest).get("layers")
            layer = layers[0] if type(layers) is list and layers else None
            if type(layer) is not dict:
                raise failed("the signature manifest has no layer")
            layer_digest = str(layer.get("digest"))
            blob = self.artifacts.blob(reference, layer_digest, self.deadline_ns)
        except DeadlinePassed:
            raise
        except (ExpressionFailed, DependencyError) as error:
            raise failed(
                "unable to retrieve digital signature with digest"
                f" {_quoted(digest)} associated with {_quoted(name)} from the"
                f" Repository, error : {error.message}"
            ) from error
        return str(layer.get("mediaType")), blob

    def statement(
        self,
        reference: Reference,
        image: Descriptor,
        artifact_type: str,
        image_name: str,
    ) -> dict[str, Json]:
        """Return the first attestation of a type, which must be signed.

        KYVERNO: further attestations of the type are not read (docs/behaviour/images
        4).
        Raises: ExpressionFailed, DependencyError.
        """
        listed = self.artifacts.referring(reference, image.digest, self.deadline_ns)
        for entry in listed:
            if entry.get("artifactType") == artifact_type:
                digest = str(entry.get("digest"))
                return self._attested(reference, image, artifact_type, digest)
        raise failed(
            f"no matching attestations found for image {image_name} with type"
            f" {artifact_type}"
        )

    def _attested(
        self, reference: Reference, image: Descriptor, artifact_type: str, digest: str
    ) -> dict[str, Json]:
        referrer = self.artifacts.document(reference, digest, self.deadline_ns)
        self.verify(reference, referrer)
        manifest = json_object(referrer.body, digest)
        check_about(manifest, image.digest, artifact_type)
        layers = manifest.get("layers")
        if type(layers) is not list or not layers:
            raise failed(f"no predicate found: {digest}")
        if len(layers) > 1:
            raise failed(f"multiple layers in predicate not supported: {digest}")
        layer = layers[0] if type(layers[0]) is dict else {}
        size, name = layer.get("size"), str(layer.get("digest"))
        if type(size) is float and size > _PREDICATE_BYTES_MAX:
            raise failed(
                f"predicate size {size:.0f} exceeds {_PREDICATE_BYTES_MAX} for digest"
                f" {name}"
            )
        blob = self.artifacts.blob(reference, name, self.deadline_ns)
        predicate = json_object(blob, f"predicate {name}")
        statement = dict(manifest)
        if statement.get("type") is None:
            statement["type"] = artifact_type
        if statement.get("predicate") is None:
            statement["predicate"] = predicate
        return statement


def check_about(manifest: Mapping[str, Json], digest: str, artifact_type: str) -> None:
    """Require that the signed manifest has this subject and this type.

    SAFETY: the list of referrers is not signed. Upstream therefore accepts an
    attestation of another image or type that an attacker adds to the list.
    """
    subject = manifest.get("subject")
    if type(subject) is not dict or subject.get("digest") != digest:
        raise failed(f"the attestation is not about {digest}")
    config = manifest.get("config")
    kind = manifest.get("artifactType") or (
        config.get("mediaType") if type(config) is dict else None
    )
    if kind != artifact_type:
        raise failed(f"the attestation is not of type {artifact_type}")


def _quoted(value: str) -> str:
    return json_string(value, escape_html=False)
