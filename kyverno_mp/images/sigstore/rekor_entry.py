"""Compare an entry of a transparency log with a signature.

Room: images. Takes: the body of an entry, a signature. Gives: nothing, or raises.
Next: images/sigstore/rekor.py, images/sigstore/log_search.py.
Source: docs/behaviour/images 3.5; Rekor's types hashedrekord, intoto, dsse and rekord.

An entry contains the hash of the signed content, the signature (except for attestations
in the form intoto 0.0.1) and the key or certificate.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import load_der_public_key

from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved, load_certificate
from kyverno_mp.limits import IMAGE_LOG_BYTES_MAX
from kyverno_mp.values.jsonvalue import Json

_PEM: Final = re.compile(
    rb"\s*-----BEGIN ([A-Z ]+)-----[ \t\r]*\n([A-Za-z0-9+/=\s]*?)\n?-----END \1-----\s*"
)
_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
_MALFORMED: Final = "the entry is malformed"


class Signed(NamedTuple):
    """A signature, its signed content, and the PEM of its key or certificate.

    ``signature``: base64, "" for an attestation, whose payload is the envelope.
    """

    signature: str
    payload: bytes
    pem: str


class _Entry(NamedTuple):
    """The content of an entry; ``signature`` is base64, "" if absent."""

    signature: str
    key: bytes
    algorithm: str
    digest: str


def check_entry(body: str, signed: Signed, source: str) -> None:
    """Require that an entry is about exactly this signature.

    ``body``: base64; ``source``: the source of the entry, for error messages.
    Raises: Unproved.
    """
    noun = "signature" if signed.signature else "key"
    try:
        entry = _read(body)
    except Unproved as error:
        raise Unproved(f"failed to extract {noun} from {source}: {error}") from None
    if signed.signature and entry.signature != signed.signature:
        raise Unproved(f"signature in {source} does not match signature being verified")
    _check_key(entry.key, signed.pem)
    if entry.algorithm != "sha256":
        raise Unproved(f'unexpected algorithm: "{entry.algorithm}"')
    digest = hashlib.sha256(signed.payload).hexdigest()
    if entry.digest != digest:
        message = f'matching {source} to payload: {source}="{entry.digest}"'
        raise Unproved(f'{message}, payload="{digest}"')


def check_logged(
    body: str, signature: bytes, digests: Collection[str], pem: str
) -> None:
    """Require that the entry of a bundle has this signature, content and certificate.

    ``digests``: hexadecimal SHA-256 of the data that may have been logged, the content
    or the envelope; empty = any. Raises: Unproved.
    """
    entry = _read(body)
    decoded = _decoded(entry.signature)
    if (
        decoded != signature
        and base64_bytes(decoded.decode(errors="replace")) != signature
    ):
        raise Unproved("transparency log signature does not match")
    _check_key(entry.key, pem)
    if digests and (entry.algorithm != "sha256" or entry.digest not in digests):
        raise Unproved("transparency log content does not match")


def _check_key(key: bytes, pem: str) -> None:
    certificate_pem, entry_pem = _PEM.fullmatch(pem.encode()), _PEM.fullmatch(key)
    if certificate_pem is None or entry_pem is None:
        raise Unproved("unexpected PEM block")
    if _pem_bytes(certificate_pem[2]) != _pem_bytes(entry_pem[2]):
        printed = key.decode(errors="replace")
        raise Unproved(f"comparing public key PEMs, expected {pem}, got {printed}")


def _pem_bytes(body: bytes) -> bytes:
    der = base64_bytes(b"".join(body.split()).decode())
    if der is None:
        raise Unproved("unexpected PEM block")
    return der


def _read(body: str) -> _Entry:
    if len(body) > IMAGE_LOG_BYTES_MAX:
        raise Unproved(f"more than {IMAGE_LOG_BYTES_MAX} bytes")
    try:
        entry = json_value(base64_bytes(body) or b"")
    except ValueError:
        raise Unproved("it is not JSON in base64") from None
    if type(entry) is not dict:
        raise Unproved("it is not a JSON object")
    kind, version = entry.get("kind"), entry.get("apiVersion")
    kind_name = kind if type(kind) is str else ""
    reader = _READERS.get((kind_name, version if type(version) is str else ""))
    if reader is None and any(name == kind_name for name, _ in _READERS):
        raise Unproved(f"unsupported version of kind {kind_name}")
    if reader is None:
        raise Unproved(f'invalid kind value: "{kind_name}"')
    return reader(_object(entry, "spec"))


def _hashedrekord(spec: Mapping[str, Json]) -> _Entry:
    signature = _object(spec, "signature")
    content = _text(signature, "content")
    key = _decoded(_text(_object(signature, "publicKey"), "content"))
    algorithm, digest = _hash(_object(spec, "data"))
    # KYVERNO: an entry whose own signature fails is rejected.
    _check_signature(key, _decoded(content), algorithm, digest)
    return _Entry(content, key, algorithm, digest)


def _intoto_1(spec: Mapping[str, Json]) -> _Entry:
    algorithm, digest = _hash(_object(spec, "content"))
    return _Entry("", _decoded(_text(spec, "publicKey")), algorithm, digest)


def _intoto_2(spec: Mapping[str, Json]) -> _Entry:
    content = _object(spec, "content")
    signature = _only(_object(content, "envelope"))
    algorithm, digest = _hash(content)
    key = _decoded(_text(signature, "publicKey"))
    return _Entry(_text(signature, "sig"), key, algorithm, digest)


def _dsse(spec: Mapping[str, Json]) -> _Entry:
    signature = _only(spec)
    algorithm, digest = _hash(spec, "envelopeHash")
    key = _decoded(_text(signature, "verifier"))
    return _Entry(_text(signature, "signature"), key, algorithm, digest)


_READERS: Final = {
    ("hashedrekord", "0.0.1"): _hashedrekord,
    ("rekord", "0.0.1"): _hashedrekord,
    ("intoto", "0.0.1"): _intoto_1,
    ("intoto", "0.0.2"): _intoto_2,
    ("dsse", "0.0.1"): _dsse,
}


def _only(holder: Mapping[str, Json]) -> Mapping[str, Json]:
    listed = holder.get("signatures")
    if type(listed) is list and len(listed) > 1:
        message = "multiple signatures on DSSE envelopes are not currently supported"
        raise Unproved(message)
    if type(listed) is not list or not listed or type(listed[0]) is not dict:
        raise Unproved(_MALFORMED)
    return listed[0]


def _hash(holder: Mapping[str, Json], name: str = "hash") -> tuple[str, str]:
    fields = _object(holder, name)
    algorithm, digest = _text(fields, "algorithm"), _text(fields, "value")
    if algorithm not in _HASHES:
        raise Unproved(f'unexpected algorithm: "{algorithm}"')
    return algorithm, digest


def _check_signature(pem: bytes, signature: bytes, algorithm: str, digest: str) -> None:
    prefix, key = "verifying signature", _key_in(pem)
    hash_algorithm = _HASHES[algorithm]()
    try:
        hashed = bytes.fromhex(digest)
    except ValueError:
        raise Unproved(f"{prefix}: the hash is not hexadecimal") from None
    if len(hashed) != hash_algorithm.digest_size:
        raise Unproved("invalid value for hash")
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            message = "invalid signature when validating ASN.1 encoded signature"
            key.verify(signature, hashed, ec.ECDSA(Prehashed(hash_algorithm)))
        elif isinstance(key, rsa.RSAPublicKey):
            message = "crypto/rsa: verification error"
            key.verify(signature, hashed, padding.PKCS1v15(), Prehashed(hash_algorithm))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            # KYVERNO: an entry cannot have an Ed25519 signature over a 32-byte hash.
            message = (
                f'unsupported hash algorithm: "SHA-{algorithm[3:]}" not in [SHA-512]'
            )
            raise Unproved(f"{prefix}: {message}")
        else:
            raise Unproved(f"{prefix}: unsupported type of key")
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        raise Unproved(f"{prefix}: {message}") from None


def _key_in(pem: bytes) -> object:
    """Return the key of an entry or of its certificate. Raises: Unproved."""
    match = _PEM.match(pem)
    if match is None:
        raise Unproved("the entry's key is not PEM")
    der = _pem_bytes(match[2])
    try:
        if match[1] == b"CERTIFICATE":
            return load_certificate(der).public_key()
        return load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unproved("the entry's key is not readable") from None


def _object(holder: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    member = holder.get(name)
    if type(member) is not dict:
        raise Unproved(_MALFORMED)
    return member


def _text(holder: Mapping[str, Json], name: str) -> str:
    value = holder.get(name)
    if type(value) is not str:
        raise Unproved(_MALFORMED)
    return value


def _decoded(encoded: str) -> bytes:
    data = base64_bytes(encoded)
    if data is None:
        raise Unproved(_MALFORMED)
    return data
