"""Sign a dry run as the workflow would, with an authority that is made for it alone.

Takes: the identity of the workflow, a statement. Gives: a Sigstore bundle, and the
trusted root that verifies it and nothing else. Next: verify.py. May touch: nothing.
Source: sigstore/protobuf-specs; sigstore/fulcio (the issuer of a certificate).

The keys are thrown away, so nobody can sign with them later.
"""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ROOT_FILE: Final = "dry-run-root.json"
ISSUER: Final = "https://token.actions.githubusercontent.com"
_IN_TOTO: Final = "application/vnd.in-toto+json"
_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ISSUER_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_VALID: Final = timedelta(minutes=10)


def signed(
    statement: dict[str, Any], identity: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bundle, and the trusted root of the authority."""
    now = datetime.now(UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dry run")])
    root = _builder(name, name, root_key, now)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    leaf = _builder(x509.Name([]), name, key, now)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)])
    leaf = leaf.add_extension(names, critical=True)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
    leaf = leaf.add_extension(usage, critical=False)
    issuer = x509.UnrecognizedExtension(_ISSUER_OID, ISSUER.encode())
    leaf = leaf.add_extension(issuer, critical=False)
    payload = json.dumps(statement, sort_keys=True).encode()
    kind = _IN_TOTO.encode()
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signature = key.sign(encoded, ec.ECDSA(hashes.SHA256()))
    certificate = leaf.sign(root_key, hashes.SHA256())
    bundle = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {"certificate": _raw(certificate)},
        "dsseEnvelope": {
            "payload": b64encode(payload).decode(),
            "payloadType": _IN_TOTO,
            "signatures": [{"sig": b64encode(signature).decode()}],
        },
    }
    chain = {"certificates": [_raw(root.sign(root_key, hashes.SHA256()))]}
    return bundle, {"certificateAuthorities": [{"certChain": chain}]}


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _raw(certificate: x509.Certificate) -> dict[str, str]:
    return {"rawBytes": b64encode(certificate.public_bytes(Encoding.DER)).decode()}
