"""Read Sigstore bundles of versions 0.1 to 0.3.

Room: images. Takes: the JSON of a bundle. Gives: a Bundle. Next:
images/bundles/verify.py.
Source: docs/behaviour/images 5; sigstore/protobuf-specs (sigstore_bundle.proto).
"""

import base64
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cryptography import x509

from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved, load_certificate
from kyverno_mp.images.sigstore.certificates import check_readable
from kyverno_mp.limits import IMAGE_BUNDLE_BYTES_MAX, IMAGE_BUNDLE_PARTS_MAX
from kyverno_mp.values.jsonvalue import Json

IN_TOTO: Final = "application/vnd.in-toto+json"
_OLD: Final = "application/vnd.dev.sigstore.bundle+json;version="
_NEW: Final = re.compile(r"application/vnd\.dev\.sigstore\.bundle\.v(\d+\.\d+)\+json")
_VERSIONS: Final = ("0.1", "0.2", "0.3")
_INVALID: Final = "validation error"
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
"""SAFETY: a number of 64 bits has one spelling."""
_NAMES: Final = {
    "bundle": frozenset(
        ("mediaType", "verificationMaterial", "dsseEnvelope", "messageSignature")
    ),
    "material": frozenset(
        (
            "certificate",
            "x509CertificateChain",
            "publicKey",
            "tlogEntries",
            "timestampVerificationData",
        )
    ),
    "envelope": frozenset(("payload", "payloadType", "signatures")),
    "message": frozenset(("messageDigest", "signature")),
    "entry": frozenset(
        (
            "logIndex",
            "logId",
            "kindVersion",
            "integratedTime",
            "inclusionPromise",
            "inclusionProof",
            "canonicalizedBody",
        )
    ),
    "proof": frozenset(("logIndex", "rootHash", "treeSize", "hashes", "checkpoint")),
}


class Entry(NamedTuple):
    """One transparency log entry in a bundle."""

    body: str
    integrated_time: int
    log_index: int
    log_id: str
    promise: bytes
    proof: Mapping[str, Json] | None


class Bundle(NamedTuple):
    """One bundle: an envelope, if ``payload_type`` is set, or a signed digest."""

    certificate: x509.Certificate | None
    signature: bytes
    entries: tuple[Entry, ...]
    timestamps: tuple[bytes, ...]
    payload_type: str = ""
    content: bytes = b""
    """The payload of an envelope, or the signed digest."""


def parse(data: bytes) -> Bundle:
    """Return the bundle. Raises: Unproved with upstream's message."""
    if len(data) > IMAGE_BUNDLE_BYTES_MAX:
        raise Unproved(f"layer size {len(data)} exceeds {IMAGE_BUNDLE_BYTES_MAX}")
    try:
        raw = json_value(data)
    except ValueError as error:
        raise Unproved(str(error)) from None
    if type(raw) is not dict:
        raise Unproved("it is not a JSON object")
    version = _version(raw.get("mediaType"))
    _check_names(raw, "bundle")
    material = _object(raw, "verificationMaterial")
    _check_names(material, "material")
    certificate = _certificate(material, version)
    entries = tuple(_entry(entry, version) for entry in _list(material, "tlogEntries"))
    stamps = material.get("timestampVerificationData")
    listed = _list(stamps, "rfc3161Timestamps") if type(stamps) is dict else []
    timestamps = tuple(_bytes(_field(stamp, "signedTimestamp")) for stamp in listed)
    if "dsseEnvelope" in raw:
        envelope = _object(raw, "dsseEnvelope")
        _check_names(envelope, "envelope")
        signatures = _list(envelope, "signatures")
        # SAFETY: with one signature, the checked signature is also the logged one.
        if len(signatures) != 1:
            raise Unproved(f"{_INVALID}: an envelope must have one signature")
        return Bundle(
            certificate,
            _bytes(_field(signatures[0], "sig")),
            entries,
            timestamps,
            str(envelope.get("payloadType") or " "),
            _bytes(envelope.get("payload")),
        )
    message = _object(raw, "messageSignature")
    _check_names(message, "message")
    digest = _object(message, "messageDigest")
    if digest.get("algorithm") != "SHA2_256":
        raise Unproved(f"{_INVALID}: unsupported digest algorithm")
    signature = _bytes(message.get("signature"))
    content = _bytes(digest.get("digest"))
    return Bundle(certificate, signature, entries, timestamps, "", content)


def _version(media_type: Json) -> str:
    name = media_type if type(media_type) is str else ""
    match = _NEW.fullmatch(name)
    version = match[1] if match else ""
    if name.startswith(_OLD):
        version = name.removeprefix(_OLD)
    if not version:
        message = f"{_INVALID}: unsupported media type: {name}"
        raise Unproved(f"error getting bundle version: {message}")
    if version not in _VERSIONS:
        message = f"{_INVALID}: unsupported media type: bundle version v{version}"
        raise Unproved(f"{message} is not yet supported")
    return version


def _certificate(material: Mapping[str, Json], version: str) -> x509.Certificate | None:
    """Return the leaf; None for a public key, because no trust root covers it."""
    if "certificate" in material:
        return _x509(_object(material, "certificate"))
    if "x509CertificateChain" in material:
        if version == _VERSIONS[-1]:
            message = "verification material cannot be X.509 certificate chain"
            raise Unproved(f"{message} (for bundle v0.3)")
        chain = _list(_object(material, "x509CertificateChain"), "certificates")
        if not chain or type(chain[0]) is not dict:
            raise Unproved(f"{_INVALID}: missing certificates")
        # The bundle's other certificates are ignored in favour of the trust root's.
        return _x509(chain[0])
    if "publicKey" in material:
        return None
    raise Unproved(f"{_INVALID}: missing verification material")


def _x509(holder: Mapping[str, Json]) -> x509.Certificate:
    try:
        certificate = load_certificate(_bytes(holder.get("rawBytes")))
    except (ValueError, TypeError) as error:
        raise Unproved(f"{_INVALID}: {error}") from None
    check_readable(certificate)
    return certificate


def _entry(raw: Json, version: str) -> Entry:
    if type(raw) is not dict:
        raise Unproved(f"{_INVALID}: an entry is not an object")
    _check_names(raw, "entry")
    promised = raw.get("inclusionPromise")
    promise = (
        _bytes(promised.get("signedEntryTimestamp")) if type(promised) is dict else b""
    )
    raw_proof = raw.get("inclusionProof")
    proof = _proof(raw_proof) if type(raw_proof) is dict else None
    if version == _VERSIONS[0] and not promise:
        message = "inclusion promises missing in bundle (required for bundle v0.1)"
        raise Unproved(f"{_INVALID}: {message}")
    if version != _VERSIONS[0] and proof is None:
        message = "inclusion proof missing in bundle (required for bundle v0.2)"
        raise Unproved(f"{_INVALID}: {message}")
    body = raw.get("canonicalizedBody")
    return Entry(
        body if type(body) is str else "",
        _integer(raw.get("integratedTime", "0")),
        _integer(raw.get("logIndex", "0")),
        _bytes(_object(raw, "logId").get("keyId")).hex(),
        promise,
        proof,
    )


def _proof(raw: Mapping[str, Json]) -> dict[str, Json]:
    """Return a proof in the form for rekor.check_inclusion, with the checkpoint."""
    _check_names(raw, "proof")
    checkpoint = raw.get("checkpoint")
    envelope = checkpoint.get("envelope") if type(checkpoint) is dict else None
    if type(envelope) is not str or not envelope:
        raise Unproved(f"{_INVALID}: inclusion proof missing checkpoint")
    return {
        "logIndex": _integer(raw.get("logIndex", "0")),
        "treeSize": _integer(raw.get("treeSize", "0")),
        "rootHash": _bytes(raw.get("rootHash")).hex(),
        "hashes": [_bytes(encoded).hex() for encoded in _list(raw, "hashes")],
        "checkpoint": envelope,
    }


def _check_names(holder: Mapping[str, Json], kind: str) -> None:
    """Reject unknown fields, as upstream does: they may be misspelt."""
    for name in holder:
        if name not in _NAMES[kind]:
            raise Unproved(f'proto: unknown field "{name}"')


def _integer(value: Json) -> int:
    """Return an integer, which protobuf's JSON encodes as a string."""
    if type(value) is str and _DECIMAL.fullmatch(value):
        return int(value)
    if type(value) is int and value >= 0:
        return value
    raise Unproved(f"{_INVALID}: not an integer")


def _bytes(value: Json) -> bytes:
    data = base64_bytes(value)
    if not data:
        raise Unproved(f"{_INVALID}: a value is missing or not base64")
    # SAFETY: upstream accepts other encodings of the same bytes; signed data has only
    # one.
    if base64.b64encode(data).decode() != value:
        raise Unproved(f"{_INVALID}: a value has unused bits in its base64")
    return data


def _field(holder: Json, name: str) -> Json:
    return holder.get(name) if type(holder) is dict else None


def _object(holder: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    member = holder.get(name)
    if type(member) is not dict:
        raise Unproved(f"{_INVALID}: missing {name}")
    return member


def _list(holder: Mapping[str, Json], name: str) -> list[Json]:
    items = holder.get(name)
    if items is None:
        return []
    if type(items) is not list or len(items) > IMAGE_BUNDLE_PARTS_MAX:
        raise Unproved(f"{_INVALID}: {name} is no list, or too long")
    return items
