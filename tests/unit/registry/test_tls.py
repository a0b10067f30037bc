"""The TLS contexts of calls to registries.

A failure means: each call reads the system's authorities again (20 to 50 ms), or a call
to an insecure registry makes the others insecure.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kyverno_mp.controllers.certificates.make import certificate_pem, make_ca, make_key
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.registry.exchange import RegistryCall, tls_context

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def call_to(scheme: str, *, is_verified: bool = True) -> RegistryCall:
    return RegistryCall(
        method="GET",
        url=f"{scheme}://r.test/v2/",
        headers={},
        bytes_max=1,
        is_verified=is_verified,
    )


def context(*, is_verified: bool = True) -> ssl.SSLContext:
    made = tls_context("https", call_to("https", is_verified=is_verified))
    assert made is not None
    return made


def test_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = context()

    def read_again() -> ssl.SSLContext:
        raise AssertionError("the authorities are read again")

    monkeypatch.setattr(ssl, "create_default_context", read_again)
    assert context() is first


def test_unverified_calls_have_their_own_context() -> None:
    verified, unverified = context(), context(is_verified=False)
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (unverified.verify_mode, unverified.check_hostname) == (ssl.CERT_NONE, False)
    for made in (verified, unverified):
        assert made.minimum_version is ssl.TLSVersion.TLSv1_2


def test_other_authorities_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = context()
    file = tmp_path / "authorities.pem"
    file.write_bytes(
        certificate_pem(make_ca(make_key("ECDSA"), NOW, CertificateRules()))
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert context() is not before
    assert context().cert_store_stats()["x509_ca"] == 1


def test_plain_http_has_none() -> None:
    assert tls_context("http", call_to("http")) is None
