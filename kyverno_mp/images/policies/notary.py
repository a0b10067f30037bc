"""Verify signatures and artefacts of Notation for ImageValidatingPolicies.

Room: images. Takes: NotaryQuery, Artifacts. Gives: a NotaryReader, digests, documents.
Next: images/notation/reader.py. May touch: the network through images/artifacts.py.
Source: docs/behaviour/images 8 (Notary attestor); Kyverno
pkg/image/verifiers/ivpol/notary.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.artifacts import Artifacts, json_object, parsed
from kyverno_mp.images.keys import failed, load_certificates
from kyverno_mp.images.notation.reader import NotaryReader, check_about, load_trusted
from kyverno_mp.program.image_policies.ports import NotaryQuery
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json

_DOCUMENT_BYTES_MAX: Final = 10_000_000


def reader(
    notary_query: NotaryQuery,
    artifacts: Artifacts,
    now: datetime,
    until_ns: int,
    hold: Callable[[datetime], None] = lambda _at: None,
) -> NotaryReader:
    """Return a reader with the attestor's certificates. Raises: ExpressionFailed.

    ``hold`` gets the time until which a verified signature is valid.

    KYVERNO: if certificates of timestamp authorities are given, a timestamp is
    required.
    """
    return NotaryReader(
        artifacts,
        load_trusted(notary_query.certificates, ""),
        now,
        until_ns,
        hold,
        stamping=_stamping(notary_query.stamping),
    )


def _stamping(pem: str | None) -> list[x509.Certificate]:
    """SAFETY: blank timestamp authorities are an error instead of no authorities."""
    if pem is None:
        return []
    try:
        return load_certificates(pem)
    except ValueError as error:
        raise failed(f"failed to parse tsaCerts: {error}") from error


def signed_referrer(
    notary_reader: NotaryReader, reference: Reference, digest: str, artifact_type: str
) -> str:
    """Return the digest of the first signed artefact about the image.

    Raises: ExpressionFailed, DependencyError.
    """
    reasons = []
    for entry in notary_reader.artifacts.referring(
        reference, digest, notary_reader.deadline_ns
    ):
        if entry.get("artifactType") != artifact_type:
            continue
        named = str(entry.get("digest"))
        try:
            artefact = notary_reader.artifacts.document(
                reference, named, notary_reader.deadline_ns
            )
            # SAFETY: the list of referrers is not signed, but the manifest is.
            check_about(json_object(artefact.body, named), digest, artifact_type)
            notary_reader.verify(reference, artefact)
        except ExpressionFailed as error:
            reason = f"failed to verify attestation {artifact_type}, digest {named}"
            reasons.append(f"{reason}: {error.message}")
        else:
            return artefact.digest
    raise failed(
        "; ".join(reasons)
        or "attestation verification failed, no attestations found for type:"
        f" {artifact_type}"
    )


def document_of(
    artifacts: Artifacts, reference: Reference, digest: str, until_ns: int
) -> Json:
    """Return the JSON document of an artefact. Raises: ExpressionFailed."""
    manifest = json_object(artifacts.document(reference, digest, until_ns).body, digest)
    layers = manifest.get("layers")
    if type(layers) is not list or len(layers) != 1 or type(layers[0]) is not dict:
        raise failed("invalid referrer descriptor, must have only one layer")
    name, size = str(layers[0].get("digest")), layers[0].get("size")
    if type(size) is float and size > _DOCUMENT_BYTES_MAX:
        raise failed(f"payload size {size:.0f} exceeds {_DOCUMENT_BYTES_MAX}")
    return json_object(artifacts.blob(reference, name, until_ns), f"attestation {name}")


def parsed_as(repository: str, message: str) -> Reference:
    """Parse a signature repository. Raises: ExpressionFailed with ``message``."""
    try:
        return parsed(repository)
    except ExpressionFailed as error:
        raise failed(message) from error
