"""Read the proof of one signature: its certificate, log entry and timestamp.

Room: images. Takes: a layer of a signature manifest, Terms. Gives: a Proof, its signer.
Next: images/cosign.py.
Source: docs/behaviour/images 3.2 (annotations), 3.3 (steps 1 to 3, and 6), 3.5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Check, StaticKey, Unproved, check_of, pem_of_key
from kyverno_mp.images.sigstore.certificates import (
    all_certificates,
    key_bytes_of,
    pem_of,
    public_key_of,
)
from kyverno_mp.images.sigstore.chains import check_valid_at, verified_chain
from kyverno_mp.images.sigstore.ctlog import check_scts
from kyverno_mp.images.sigstore.logkeys import LogKeys
from kyverno_mp.images.sigstore.rekor import (
    Promise,
    parse_bundle,
    verified_bundle,
    verified_search,
)
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.sigstore.timestamps import Authority, verified_timestamp
from kyverno_mp.limits import IMAGE_CERTIFICATES_MAX
from kyverno_mp.values.jsonvalue import Json

SIGNATURE: Final = "dev.cosignproject.cosign/signature"
CERTIFICATE: Final = "dev.sigstore.cosign/certificate"
_CHAIN: Final = "dev.sigstore.cosign/chain"
BUNDLE: Final = "dev.sigstore.cosign/bundle"
TIMESTAMP: Final = "dev.sigstore.cosign/rfc3161timestamp"
UNTRUSTED: Final = (
    ". Check your TUF root (see cosign initialize) or set a custom root with env var"
    " SIGSTORE_ROOT_FILE"
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a signature manifest; ``problem``: the error of a failed read."""

    digest: str
    payload: bytes
    annotations: Mapping[str, Json]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The requirements on a signature.

    Without ``key``, the certificate must be below ``roots``, or ``chain_of`` must
    return its chain and not raise Unproved. ``log`` and ``scts``: keys of the logs that
    must contain it, None = not required. ``search`` queries a log about a signature
    without a bundle. ``tick`` raises when the time is up. ``hold`` gets the end of
    validity of a signature without a proved time.
    """

    now: datetime
    key: StaticKey | None = None
    roots: tuple[x509.Certificate, ...] = ()
    log: LogKeys | None = None
    scts: LogKeys | None = None
    chain_of: Callable[[x509.Certificate], Sequence[x509.Certificate]] | None = None
    authority: Authority | None = None
    search: Callable[[Signed], bytes] | None = None
    tick: Callable[[], None] = lambda: None
    hold: Callable[[datetime], None] = lambda _at: None


class Signer(NamedTuple):
    """A signer's check, and the issuers of its certificate."""

    check: Check
    issuers: tuple[x509.Certificate, ...] = ()


class Proof(NamedTuple):
    """One signature with its proof; the times are by the TSA and the log."""

    signature: bytes
    certificate: x509.Certificate | None
    chain: tuple[x509.Certificate, ...]
    stamped: datetime | None
    logged: datetime | None

    def signer(self, terms: Terms) -> Signer:
        """Return the signer, whose check is still to be run. Raises: Unproved."""
        if terms.key is not None:
            return Signer(terms.key.check)
        certificate = self.certificate
        if certificate is None:
            raise Unproved("no certificate found on signature")
        try:
            check = check_of(public_key_of(certificate))
        except ExpressionFailed as error:
            raise Unproved(error.message) from None
        # KYVERNO: the last certificate of the chain is never an intermediate.
        intermediates = self.chain[:-1]
        begin = certificate.not_valid_before_utc
        try:
            if terms.chain_of is not None:
                chain = list(terms.chain_of(certificate))
            else:
                chain = verified_chain(certificate, terms.roots, intermediates, begin)
        except Unproved as error:
            message = f"cert verification failed: {error}"
            raise Unproved(message + UNTRUSTED) from None
        if terms.scts is not None:
            check_scts(certificate, chain[1] if chain[1:] else None, terms.scts)
        return Signer(check, tuple(chain[1:]))

    def check_time(self, signer: Signer, terms: Terms) -> None:
        """Require certificates that were valid at signing time. Raises: Unproved."""
        certificate = self.certificate
        if certificate is None:
            return
        for name, at in (("timestamp", self.stamped), ("bundle", self.logged)):
            if at is None:
                continue
            try:
                check_valid_at(certificate, signer.issuers, at)
            except Unproved as error:
                message = f"checking expiry on certificate with {name}: {error}"
                raise Unproved(message) from None
        if self.stamped is None and self.logged is None:
            try:
                check_valid_at(certificate, signer.issuers, terms.now)
            except Unproved:
                message = "expected a signed timestamp to verify an expired certificate"
                raise Unproved(message) from None
            used = (certificate, *signer.issuers)
            terms.hold(min(certificate.not_valid_after_utc for certificate in used))


def read_proof(layer: Layer, terms: Terms) -> Proof:
    """Read the annotations; verify timestamp and log entry. Raises: Unproved."""
    terms.tick()
    if layer.problem:
        raise Unproved(layer.problem)
    # KYVERNO: a damaged bundle fails even if the log is ignored.
    promise = parse_bundle(layer.annotations.get(BUNDLE))
    encoded = layer.annotations.get(SIGNATURE)
    if type(encoded) is not str:
        raise Unproved(
            f'signature layer {layer.digest} is missing "{SIGNATURE}" annotation'
        )
    signature = base64_bytes(encoded)
    if signature is None:
        raise Unproved("the signature is not base64")
    certificates = _certificates(layer, CERTIFICATE)
    certificate = certificates[0] if certificates else None
    return Proof(
        signature,
        certificate,
        tuple(_certificates(layer, _CHAIN)),
        _stamped(layer, signature, terms),
        _logged(Signed(encoded, layer.payload, ""), certificate, promise, terms),
    )


def _certificates(layer: Layer, name: str) -> list[x509.Certificate]:
    annotation = layer.annotations.get(name)
    if annotation is None or annotation == "":
        return []
    try:
        pem = annotation if type(annotation) is str else ""
        return all_certificates(pem, IMAGE_CERTIFICATES_MAX)
    except Unproved as error:
        raise Unproved(f"the certificate is unreadable: {error}") from None


def _stamped(layer: Layer, signature: bytes, terms: Terms) -> datetime | None:
    """Return the time of the timestamp, None if it is absent."""
    annotation = layer.annotations.get(TIMESTAMP)
    if annotation is None or annotation == "":
        return None
    prefix = "unmarshaling RFC3161 timestamp bundle"
    try:
        bundle = json_value(annotation) if type(annotation) is str else None
    except ValueError:
        bundle = None
    if type(bundle) is not dict:
        raise Unproved(f"{prefix}: it is not a JSON object")
    response = base64_bytes(bundle.get("SignedRFC3161Timestamp"))
    if response is None:
        raise Unproved(f"{prefix}: it is not base64")
    if terms.authority is None:
        return None
    try:
        return verified_timestamp(response, signature or layer.payload, terms.authority)
    except Unproved as error:
        message = f"unable to verify RFC3161 timestamp bundle: {error}"
        raise Unproved(message) from None


def _logged(
    signed: Signed,
    certificate: x509.Certificate | None,
    promise: Promise | None,
    terms: Terms,
) -> datetime | None:
    """Return the time of the signature's log entry, None if ignored."""
    if terms.log is None:
        return None
    prefix = "" if promise is None else "error verifying bundle: "
    try:
        signed = signed._replace(pem=_pem(certificate, terms.key))
        if promise is not None:
            return verified_bundle(promise, signed, terms.log)
    except Unproved as error:
        raise Unproved(f"{prefix}{error}") from None
    if terms.search is None:
        raise Unproved("rekor client not provided for online verification")
    return verified_search(terms.search(signed), signed, terms.log)


def _pem(certificate: x509.Certificate | None, key: StaticKey | None) -> str:
    """Return the certificate, else the key, that the log must contain."""
    if certificate is None:
        if key is None:
            raise Unproved("no certificate found on signature")
        return pem_of_key(key.der)
    if key is not None and key_bytes_of(certificate) != key.der:
        message = "both public key and certificate were provided but did not match"
        raise Unproved(message)
    return pem_of(certificate)
