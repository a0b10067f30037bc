"""Create certificate authorities and server certificates.

Room: controllers. Takes: CertificateRules, the time, a key. Gives: certificates, PEM.
Next: controllers/certificates/reconcile.py. May touch: randomness (keys, serial
numbers).
Source: docs/behaviour/controllers 4 (names, usages, lifetimes).

Upstream uses the serial numbers 0 and 1; RFC 5280 requires positive numbers that are
unique per issuer.
"""

import ipaddress
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kyverno_mp.controllers.certificates.plan import PrivateKey
from kyverno_mp.controllers.certificates.rules import Algorithm, CertificateRules

_CA_COMMON_NAME: Final = "*.kyverno.svc"
_SLACK: Final = timedelta(hours=1)
_PEM: Final = serialization.Encoding.PEM


def make_key(algorithm: Algorithm) -> PrivateKey:
    """Create a key. Cost: RSA takes about 0.1 s."""
    if algorithm == "ECDSA":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def make_ca(
    key: PrivateKey, now: datetime, rules: CertificateRules
) -> x509.Certificate:
    """Create an authority that signs with ``key``."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _CA_COMMON_NAME)])
    builder = (
        _begin(name, name, key, now, rules.ca_lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(key, signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
    )
    return builder.sign(key, _hash_of(key))


def make_server(
    key: PrivateKey,
    authority: x509.Certificate,
    authority_key: PrivateKey,
    now: datetime,
    rules: CertificateRules,
) -> x509.Certificate:
    """Create the webhook's certificate, which never outlives its authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, rules.service)])
    lifetime = min(rules.tls_lifetime, authority.not_valid_after_utc - now)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in rules.dns_names]
    if rules.server:
        names.append(_server_name(rules.server))
    builder = (
        _begin(subject, authority.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(key, signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                authority_key.public_key()
            ),
            critical=False,
        )
    )
    return builder.sign(authority_key, _hash_of(authority_key))


def key_pem(key: PrivateKey) -> bytes:
    """Return a key as PKCS#8."""
    return key.private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(*certificates: x509.Certificate) -> bytes:
    """Return the certificates as concatenated PEM."""
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + lifetime)
    )


def _hash_of(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def _usage(key: PrivateKey, *, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=isinstance(key, rsa.RSAPrivateKey),
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _server_name(server: str) -> x509.GeneralName:
    """Return the SAN of a host with or without a port."""
    host = server
    if server.startswith("["):
        host = server[1:].partition("]")[0]
    elif server.count(":") == 1:
        host = server.partition(":")[0]
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
