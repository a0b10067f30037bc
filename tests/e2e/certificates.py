"""Create the keys and certificates of a control plane.

Takes: names. Gives: PEM files. One authority signs the API server's certificate, the
client certificates of all users, and the controller manager's requests. May touch: the
given folder.
"""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=2)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority with its files ``ca.crt`` and ``ca.key``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "e2e")])
        self._certificate = (
            _builder(name, name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .add_extension(_usage(signs_certificates=True), True)
            .sign(self._key, hashes.SHA256())
        )
        self.files = self._write("ca", self._certificate, self._key)

    def issue_server(self, name: str, hosts: Iterable[str]) -> Pair:
        """Issue a certificate for a server under these names and addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def issue_client(self, user: str, groups: Iterable[str]) -> Pair:
        """Issue a certificate that identifies a user to the API server."""
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, user),
                *(
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)
                    for group in groups
                ),
            ]
        )
        file_name = user.replace(":", "-").replace("/", "-")
        return self._issue(file_name, subject, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issue(
        self,
        file_name: str,
        subject: x509.Name,
        purpose: x509.ObjectIdentifier,
        hosts: Iterable[str],
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs_certificates=False), True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), False)
        )
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return self._write(file_name, builder.sign(self._key, hashes.SHA256()), key)

    def _write(
        self,
        file_name: str,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
    ) -> Pair:
        pair = Pair(
            self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key"
        )
        pair.certificate.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
        )
        _write_key(pair.key, key)
        return pair


def write_service_account_key(folder: Path) -> Path:
    """Write the key that signs tokens of service accounts."""
    path = folder / "service-account.key"
    _write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=2048))
    return path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
