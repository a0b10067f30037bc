"""Verify one Sigstore bundle, as a function over its parts.

Room: images. Takes: a Bundle, trusted Material, an Identity, the digest of an image.
Gives: nothing, or raises. Next: images/bundles/reader.py.
Source: docs/behaviour/images 5; RFC 6962 2.1.1; C2SP tlog-checkpoint and signed-note.

A certificate is checked at each proved time: the time of a verified log entry or of a
timestamp authority.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from kyverno_mp.images.bundles.bundle import IN_TOTO, Bundle, Entry
from kyverno_mp.images.bundles.material import Material
from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.certificates import (
    OTHER_NAME,
    alternative_names,
    extensions_of,
    fulcio_name,
    pem_of,
    public_key_of,
)
from kyverno_mp.images.sigstore.chains import verified_chain
from kyverno_mp.images.sigstore.ctlog import check_scts
from kyverno_mp.images.sigstore.identity import check_extensions, searches
from kyverno_mp.images.sigstore.logkeys import DatedKey
from kyverno_mp.images.sigstore.rekor import Promise, check_inclusion, promised_at
from kyverno_mp.images.sigstore.rekor_entry import check_logged
from kyverno_mp.images.sigstore.timestamps import verified_timestamp
from kyverno_mp.program.ports import Identity
from kyverno_mp.values.jsonvalue import Json

_ISSUER_1: Final = "1.3.6.1.4.1.57264.1.1"
_ISSUER_2: Final = "1.3.6.1.4.1.57264.1.8"
_HINT_BYTES: Final = 4
_HEADER_LINES: Final = 3
_SIGNATURE: Final = "\u2014 "


class Demands(NamedTuple):
    """A policy's demands; ``image``: the digest, ``sha256:`` and hexadecimal.

    ``now``: a time that counts as proved; ``needs_scts``: the certificate must be in a
    certificate transparency log of the trusted root.
    """

    image: str
    identity: Identity
    needs_log: bool = True
    now: datetime | None = None
    needs_scts: bool = False


def check_bundle(bundle: Bundle, material: Material, demands: Demands) -> None:
    """Require that the identity has signed the image. Raises: Unproved."""
    certificate = bundle.certificate
    if certificate is None:
        raise Unproved("no certificate: no trust root vouches for a key")
    times = []
    if demands.needs_log:
        times += _logged(bundle, certificate, material)
    times += _stamped(bundle, material)
    if demands.now is not None:
        times.append(demands.now)
    if not times:
        raise Unproved("threshold not met for verified signed timestamps: 0 < 1")
    for at in times:
        chain = trusted_chain(certificate, material, at)
    if demands.needs_scts:
        check_scts(certificate, chain[1] if chain[1:] else None, material.ctlogs)
    _check_signature(bundle, certificate)
    _check_content(bundle, demands.image)
    _check_identity(certificate, demands.identity)


def statement_of(bundle: Bundle) -> dict[str, Json]:
    """Return the in-toto statement of a bundle. Raises: Unproved."""
    if bundle.payload_type != IN_TOTO:
        raise Unproved("the bundle has no in-toto statement")
    try:
        statement = json_value(bundle.content)
    except ValueError:
        statement = None
    if type(statement) is not dict:
        raise Unproved("the payload is not a JSON object")
    return statement


def _logged(
    bundle: Bundle, certificate: x509.Certificate, material: Material
) -> list[datetime]:
    """Return the log entries' times; every entry must be valid. Raises: Unproved."""
    if not bundle.entries:
        raise Unproved("not enough verified log entries from transparency log: 0 < 1")
    if len({(entry.log_id, entry.log_index) for entry in bundle.entries}) < len(
        bundle.entries
    ):
        raise Unproved("duplicate tlog entries found")
    times = []
    for entry in bundle.entries:
        digests = _digests(bundle)
        check_logged(entry.body, bundle.signature, digests, pem_of(certificate))
        times.append(_entry_time(entry, material))
    return times


def _digests(bundle: Bundle) -> frozenset[str]:
    """Return the digests that an entry may contain; empty for an envelope."""
    if bundle.payload_type:
        return frozenset()
    return frozenset({bundle.content.hex()})


def _entry_time(entry: Entry, material: Material) -> datetime:
    """Return the time of one entry.

    KYVERNO: if the bundle has a promise and a proof, both must be valid; the time is
    the promise's (docs/behaviour/images 5). Raises: Unproved.
    """
    name = bytes.fromhex(entry.log_id)
    dated_key = material.logs.get(name)
    if dated_key is None:
        raise Unproved("rekor log public key not found for payload")
    key = dated_key.key
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Unproved("unsupported key of a transparency log")
    if entry.proof is not None:
        root = check_inclusion(base64_bytes(entry.body) or b"", entry.proof)
        _check_checkpoint(entry.proof, root, key, name)
    if not entry.promise:
        raise Unproved("the time of the entry is not signed")
    promise = Promise(
        entry.body,
        entry.integrated_time,
        entry.log_index,
        entry.log_id,
        entry.promise,
    )
    at = promised_at(promise, {name: DatedKey(key)})
    if not dated_key.period.has(at):
        raise Unproved("the log was not trusted at the time of the entry")
    return at


def _check_checkpoint(
    proof: Mapping[str, Json],
    root: bytes,
    key: ec.EllipticCurvePublicKey,
    log_id: bytes,
) -> None:
    """Require the log's signature on the root of the tree. Raises: Unproved."""
    checkpoint = str(proof["checkpoint"])
    body, blank, tail = checkpoint.partition("\n\n")
    lines = body.split("\n")
    if not blank or len(lines) < _HEADER_LINES:
        raise Unproved("the checkpoint is malformed")
    if lines[1] != str(proof["treeSize"]) or base64_bytes(lines[2]) != root:
        raise Unproved("the checkpoint is of another tree")
    if not tail.endswith("\n"):
        raise Unproved("the checkpoint is malformed")
    is_signed = False
    for line in tail[:-1].split("\n"):
        name, _, encoded = line.removeprefix(_SIGNATURE).rpartition(" ")
        decoded = (
            base64_bytes(encoded) if line.startswith(_SIGNATURE) and name else None
        )
        # SAFETY: a signature has one encoding only, as elsewhere in a bundle.
        if decoded is None or b64encode(decoded).decode() != encoded:
            raise Unproved("the checkpoint is malformed")
        is_own = name == lines[0].partition(" ")[0]
        if not is_own or decoded[:_HINT_BYTES] != log_id[:_HINT_BYTES]:
            continue
        try:
            signature = decoded[_HINT_BYTES:]
            key.verify(signature, f"{body}\n".encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        is_signed = True
    if not is_signed:
        raise Unproved("the checkpoint is not signed by the log")


def _stamped(bundle: Bundle, material: Material) -> list[datetime]:
    """Return the times of the valid timestamps; invalid ones are ignored."""
    times = []
    for response in bundle.timestamps:
        for authority, period in material.stamping:
            try:
                at = verified_timestamp(response, bundle.signature, authority)
            except Unproved:
                continue
            if period.has(at):
                times.append(at)
                break
    return times


def trusted_chain(
    certificate: x509.Certificate, material: Material, at: datetime
) -> Sequence[x509.Certificate]:
    """Return the chain below an authority of the trusted root. Raises: Unproved."""
    reason = "no certificate authority of the trust root"
    for authority in material.authorities:
        if not authority.period.has(at):
            continue
        try:
            return verified_chain(
                certificate, authority.roots, authority.intermediates, at
            )
        except Unproved as error:
            reason = str(error)
    raise Unproved(f"failed to verify leaf certificate: {reason}")


def _check_signature(bundle: Bundle, certificate: x509.Certificate) -> None:
    """Check the signature with the certificate's key. Raises: Unproved."""
    key, signature = public_key_of(certificate), bundle.signature
    kind = bundle.payload_type
    if kind:
        pair = (kind.encode(), bundle.content)
        data = b"DSSEv1 %d %s %d %s" % (len(pair[0]), pair[0], len(pair[1]), pair[1])
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            # KYVERNO: the hash is SHA-256 for every curve.
            if kind:
                key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
            else:
                scheme = ec.ECDSA(Prehashed(hashes.SHA256()))
                key.verify(signature, bundle.content, scheme)
        elif isinstance(key, rsa.RSAPublicKey):
            pkcs = padding.PKCS1v15()
            if kind:
                key.verify(signature, data, pkcs, hashes.SHA256())
            else:
                key.verify(signature, bundle.content, pkcs, Prehashed(hashes.SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey) and kind:
            key.verify(signature, data)
        else:
            raise Unproved("unsupported key of a certificate")
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        raise Unproved("the signature does not verify") from None


def _check_content(bundle: Bundle, image: str) -> None:
    digest = image.removeprefix("sha256:")
    if not bundle.payload_type:
        if bundle.content.hex() != digest:
            raise Unproved("the signed digest is of another artifact")
        return
    subjects = statement_of(bundle).get("subject")
    for subject in subjects if type(subjects) is list else []:
        digests = subject.get("digest") if type(subject) is dict else None
        if type(digests) is dict and digests.get("sha256") == digest:
            return
    raise Unproved("provided artifact digest does not match any digest in statement")


def _check_identity(certificate: x509.Certificate, identity: Identity) -> None:
    """KYVERNO: exact values, and an expression in addition (images 5).

    SAFETY: upstream ignores the extensions of a verifyImages rule here.
    """
    if not is_complete(identity):
        # SAFETY: without an identity, every certificate of the authority would pass.
        raise Unproved("no identity was demanded")
    issuer, subject = _issuer(certificate), _subject(certificate)
    for value, exact, pattern, noun in (
        (issuer, identity.issuer, identity.issuer_reg_exp, "issuer"),
        (subject, identity.subject, identity.subject_reg_exp, "subject"),
    ):
        if (exact and value != exact) or (
            pattern and not searches(pattern, value, noun)
        ):
            raise Unproved(f"no matching certificate identity found: {noun} {value}")
    check_extensions(certificate, identity)


def is_complete(identity: Identity) -> bool:
    """Return whether an issuer and a subject are required."""
    return bool(
        (identity.issuer or identity.issuer_reg_exp)
        and (identity.subject or identity.subject_reg_exp)
    )


def _issuer(certificate: x509.Certificate) -> str:
    """Return the issuer from the last of its extensions (KYVERNO: images 5)."""
    issuer = ""
    for extension in extensions_of(certificate):
        value = extension.value
        if not isinstance(value, x509.UnrecognizedExtension):
            continue
        if extension.oid.dotted_string == _ISSUER_1:
            issuer = value.value.decode(errors="replace")
        elif extension.oid.dotted_string == _ISSUER_2:
            issuer = _utf8_string(value.value)
    return issuer


def _utf8_string(data: bytes) -> str:
    """Return the text of a short ASN.1 UTF8String. Raises: Unproved."""
    named = x509.OtherName(OTHER_NAME, data)
    issuer = fulcio_name(named)
    if not issuer:
        raise Unproved("the issuer of the certificate is not readable")
    return issuer


def _subject(certificate: x509.Certificate) -> str:
    """Return the subject: a URI, else an e-mail address, else Fulcio's name."""
    names = alternative_names(certificate)
    for kind in (x509.UniformResourceIdentifier, x509.RFC822Name):
        for alternative in names:
            if isinstance(alternative, kind):
                return str(alternative.value)
    for name in names:
        if isinstance(name, x509.OtherName) and name.type_id == OTHER_NAME:
            return fulcio_name(name)
    raise Unproved("the certificate has no subject")
