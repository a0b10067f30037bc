"""Create a certificate authority and a server certificate for use without a cluster.

Room: process. Takes: a private folder. Gives: three PEM files there; ``Files.replace``
for the certificate of a cluster; the context of metrics over TLS. Next: serve.
May touch: that folder, the clock, randomness.
Source: docs/behaviour/controllers 4 (validity, names); keys are ECDSA P-256.
"""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.http.tls import Certificates

_DAYS: Final = 365
_SLACK: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of PEM files; ``ca`` is the CA that callers must trust, None if unknown."""

    cert: Path
    key: Path
    ca: Path | None = None

    def replace(self, cert: bytes, key: bytes) -> None:
        """Replace both files, the key first. Raises: OSError; then both stay.

        Both are complete before the first is replaced: in a full folder, workers would
        otherwise load a key without its certificate.
        """
        files = [(self.key, key), (self.cert, cert)]
        new = [(path.with_suffix(f"{path.suffix}.new"), path) for path, _ in files]
        for (temporary, _), (_, data) in zip(new, files, strict=True):
            _write(temporary, data)
        for temporary, path in new:
            temporary.replace(path)


def tls_of_metrics(settings: Settings, files: Files | None) -> ssl.SSLContext | None:
    """Return the context of metrics over TLS; its files are read again on change."""
    if not settings.metrics_tls:
        return None
    if settings.metrics_cert_file:
        files = Files(Path(settings.metrics_cert_file), Path(settings.metrics_key_file))
    assert files is not None, "settings need a certificate for this pod"
    return Certificates(files.cert, files.key).context


def make(directory: Path, namespace: str, now: datetime | None = None) -> Files:
    """Write ca.crt, tls.crt and tls.key (0600); discard the authority's key."""
    now = now or datetime.now(UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kyverno-mp CA")])
    authority = (
        _start(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    service = f"kyverno-svc.{namespace}.svc"
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.DNSName("kyverno-svc"),
        x509.DNSName(f"kyverno-svc.{namespace}"),
        x509.DNSName(service),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, service)])
    server = (
        _start(subject, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = Files(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")
    _write(directory / "ca.crt", authority.public_bytes(pem))
    _write(files.cert, server.public_bytes(pem))
    _write(
        files.key,
        key.private_bytes(
            pem,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    return files


def _start(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
