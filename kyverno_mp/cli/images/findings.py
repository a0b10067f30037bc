"""List a registry's unverified data about an image.

Room: cli. Takes: a client, a reference. Gives: JSON for humans. Next: command, text.
May touch: the network, or a folder, through the client.
Source: docs/behaviour/images 3.2 (tags and annotations), 6 (referrers).

None of the data is verified: any client with push access may have written it.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from kyverno_mp.errors import DependencyError, InputError
from kyverno_mp.images.artifacts import Artifacts, json_object, parsed
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.certificates import all_certificates, subject_names
from kyverno_mp.images.sigstore.proof import (
    BUNDLE,
    CERTIFICATE,
    SIGNATURE,
    TIMESTAMP,
    Layer,
)
from kyverno_mp.images.sigstore.rekor import parse_bundle
from kyverno_mp.limits import IMAGE_CERTIFICATES_MAX
from kyverno_mp.values.jsonvalue import Json

_Found = TypeVar("_Found")


def findings(artifacts: Artifacts, image: str, deadline_ns: int) -> dict[str, Json]:
    """Return digest, signatures, attestations and referrers, or why they are unknown.

    Shape: ``{"digest": "sha256:..", "signatures": [{..}], "attestations": [{..}],
    "referrers": [{..}], "problems": ["signatures: .."]}``.
    """
    problems: list[Json] = []

    def tried(part: str, read: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return read()
        except (InputError, DependencyError) as error:
            problems.append(f"{part}: {error.message}")
            return otherwise

    digest = tried("digest", lambda: artifacts.digest(image, deadline_ns), "")
    signatures: Iterable[Layer] = ()
    attestations: Iterable[Layer] = ()
    referrers: Iterable[dict[str, Json]] = ()
    if digest:
        reference = parsed(image)
        signatures = tried(
            "signatures",
            lambda: artifacts.signatures(reference, digest, "sig", deadline_ns),
            [],
        )
        attestations = tried(
            "attestations",
            lambda: artifacts.signatures(reference, digest, "att", deadline_ns),
            [],
        )
        referrers = tried(
            "referrers", lambda: artifacts.referring(reference, digest, deadline_ns), []
        )
    return {
        "digest": digest,
        "signatures": [described(signature) for signature in signatures],
        "attestations": [
            {**described(attestation), "predicateType": _predicate_type(attestation)}
            for attestation in attestations
        ],
        "referrers": [
            {
                "digest": referrer.get("digest"),
                "artifactType": referrer.get("artifactType"),
            }
            for referrer in referrers
        ],
        "problems": problems,
    }


def described(layer: Layer) -> dict[str, Json]:
    """Return the data of one signature; each part is optional."""
    facts: dict[str, Json] = {"digest": layer.digest}
    if layer.problem:
        facts["problem"] = layer.problem
    if SIGNATURE not in layer.annotations:
        facts["problem"] = "the layer has no signature"
    try:
        certificate = _certificate(layer)
        if certificate:
            facts["certificate"] = certificate
        promise = parse_bundle(layer.annotations.get(BUNDLE))
        if promise is not None:
            at = datetime.fromtimestamp(promise.integrated_time, UTC)
            facts["log"] = {"index": promise.log_index, "time": f"{at:%FT%TZ}"}
    except (Unproved, ValueError, OverflowError, OSError) as error:
        facts["problem"] = str(error)
    if layer.annotations.get(TIMESTAMP):
        facts["timestamp"] = True
    return facts


def _certificate(layer: Layer) -> dict[str, Json]:
    pem = layer.annotations.get(CERTIFICATE)
    if type(pem) is not str or not pem:
        return {}
    certificate = all_certificates(pem, IMAGE_CERTIFICATES_MAX)[0]
    return {
        "subjects": list(subject_names(certificate)),
        "issuedBy": certificate.issuer.rfc4514_string(),
        "notBefore": f"{certificate.not_valid_before_utc:%FT%TZ}",
        "notAfter": f"{certificate.not_valid_after_utc:%FT%TZ}",
    }


def _predicate_type(layer: Layer) -> str:
    """Return the predicate type declared in an envelope, "" without one."""
    try:
        body = json_object(layer.payload, "").get("payload")
        statement = json_object(base64.b64decode(str(body)), "")
    except (InputError, binascii.Error, ValueError):
        return ""
    return str(statement.get("predicateType") or "")
