"""Certificates overlap and are renewed in time; a user's certificates are kept."""

import base64
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from kyverno_mp.controllers.certificates import plan
from kyverno_mp.controllers.certificates.make import (
    certificate_pem,
    key_pem,
    make_ca,
    make_key,
    make_server,
)
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted
from kyverno_mp.controllers.certificates.reconcile import (
    CertificateSecrets,
    read,
    reconcile,
)
from kyverno_mp.controllers.certificates.rules import Algorithm, CertificateRules
from kyverno_mp.kube.apply import Objects
from kyverno_mp.limits import CERTIFICATE_KEYS_KEPT_MAX
from tests.unit.kube.fake_api import FakeApi, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
RULES = CertificateRules(algorithm="ECDSA")
PATH = "/api/v1/namespaces/kyverno/secrets/kyverno-svc.kyverno.svc.kyverno-tls-"


def keep(
    api: FakeApi, at: datetime, rules: CertificateRules = RULES
) -> CertificateSecrets:
    return reconcile(Objects(api.client()), rules, at)


def put_secret(api: FakeApi, which: str, pem: bytes, key: bytes, **fields: Any) -> None:
    data = {
        "tls.crt": base64.b64encode(pem).decode(),
        "tls.key": base64.b64encode(key).decode(),
    }
    api.put(PATH + which, data=data, **{"type": "kubernetes.io/tls", **fields})


def leads(secrets: CertificateSecrets, at: datetime) -> bool:
    return is_trusted(
        certificates_of(secrets.certificate), certificates_of(secrets.ca_bundle), at
    )


def test_secrets_have_upstreams_names_keys_and_label() -> None:
    with running() as api:
        secrets = keep(api, NOW)
        names = sorted(key[3].rpartition("-")[2] for key in api.objects)
        assert names == ["ca", "pair"]
        for raw in api.objects.values():
            assert raw["type"] == "kubernetes.io/tls"
            assert set(raw["data"]) == {"tls.crt", "tls.key"}
            assert raw["metadata"]["labels"] == {
                "cert.kyverno.io/managed-by": "kyverno"
            }
        assert leads(secrets, NOW)
        (leaf,) = certificates_of(secrets.certificate)
        assert leaf.not_valid_after_utc == NOW + 150 * DAY
        writes = api.version
        assert keep(api, NOW + 134 * DAY) == secrets
        assert api.version == writes
        assert read(Objects(api.client()), RULES) == secrets


def test_certificate_is_renewed_fifteen_days_before_expiry() -> None:
    with running() as api:
        before = keep(api, NOW)
        after = keep(api, NOW + 136 * DAY)
        assert after.ca_bundle == before.ca_bundle
        assert after.certificate != before.certificate
        assert leads(after, NOW + 200 * DAY)


def test_old_and_new_ca_overlap() -> None:
    """Replicas that still serve the old leaf are trusted by the new bundle."""
    with running() as api:
        keep(api, NOW)
        old = keep(api, NOW + 340 * DAY)
        new = keep(api, NOW + 351 * DAY)
        assert len(certificates_of(new.ca_bundle)) == 2
        at = NOW + 352 * DAY
        assert is_trusted(
            certificates_of(old.certificate), certificates_of(new.ca_bundle), at
        )
        assert leads(new, at)


def test_users_secret_with_a_chain_is_kept() -> None:
    """Upstream overwrites it (14.37)."""
    root_key, middle_key, key = (make_key("ECDSA") for _ in range(3))
    root = make_ca(root_key, NOW, RULES)
    leaf = make_server(key, root, root_key, NOW, RULES)
    pem = certificate_pem(leaf, make_ca(middle_key, NOW, RULES))
    with running() as api:
        put_secret(api, "ca", certificate_pem(root), b"")
        put_secret(api, "pair", pem, key_pem(key))
        before = api.version
        secrets = keep(api, NOW + DAY)
        assert (secrets.certificate, secrets.problems) == (pem, ())
        late = keep(api, NOW + 400 * DAY)
        assert [text.partition(":")[2][:21] for text in late.problems] == [
            " tls is not valid but"
        ] * 2
        assert api.version == before


def test_secret_of_another_type_is_recreated() -> None:
    with running() as api:
        label = {"labels": {"cert.kyverno.io/managed-by": "kyverno"}}
        put_secret(api, "ca", b"", b"", type="Opaque", metadata=label)
        secrets = keep(api, NOW)
        assert leads(secrets, NOW)


def test_deleted_or_invalid_secret_is_restored() -> None:
    with running() as api:
        keep(api, NOW)
        api.remove(PATH + "pair")
        assert leads(keep(api, NOW), NOW)
        label = {"labels": {"cert.kyverno.io/managed-by": "kyverno"}}
        put_secret(api, "ca", b"junk", b"junk", metadata=label)
        assert leads(keep(api, NOW), NOW)


def test_key_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # RSA keys are checked when they are loaded, which takes 40 ms each.
    loaded: list[bytes] = []
    load = serialization.load_pem_private_key

    def counting(pem: bytes, password: bytes | None) -> Any:
        loaded.append(pem)
        return load(pem, password)

    monkeypatch.setattr(serialization, "load_pem_private_key", counting)
    with running() as api:
        kept = keep(api, NOW)
        assert len(loaded) == len(set(loaded)) == 2  # the authority's, the server's
        for _ in range(3):
            assert read(Objects(api.client()), RULES) == kept
            assert keep(api, NOW) == kept
        assert len(loaded) == 2
        api.remove(PATH + "pair")
        assert keep(api, NOW).key != kept.key
        assert len(loaded) == 3


def test_parsed_keys_cache_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[bytes] = []

    def counting(pem: bytes, _password: bytes | None) -> Any:
        loads.append(pem)
        raise ValueError

    monkeypatch.setattr(serialization, "load_pem_private_key", counting)
    first, *others = [
        {"data": {"tls.key": base64.b64encode(b"key %d" % number).decode()}}
        for number in range(CERTIFICATE_KEYS_KEPT_MAX + 1)
    ]
    for raw in (first, first, *others, first):
        assert plan.read_secret(raw).key is None
    assert loads.count(b"key 0") == 2


def test_renamed_service_gets_a_new_certificate() -> None:
    with running() as api:
        keep(api, NOW)
        other = CertificateRules(
            algorithm="ECDSA",
            service="other",
            ca_secret=RULES.ca_name,
            tls_secret=RULES.tls_name,
            server="10.0.0.1:9443",
        )
        secrets = keep(api, NOW, other)
        (leaf,) = certificates_of(secrets.certificate)
        assert "other" in leaf.subject.rfc4514_string()


@pytest.mark.parametrize("algorithm", ["RSA", "ECDSA", "Ed25519"])
def test_tls_client_accepts_the_certificates(
    algorithm: Algorithm, tmp_path: Path
) -> None:
    """OpenSSL checks name, chain and usages, as the API server does."""
    with running() as api:
        secrets = keep(api, datetime.now(UTC), CertificateRules(algorithm=algorithm))
    pair = tmp_path / "pair.pem"
    pair.write_bytes(secrets.certificate + secrets.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair)
    client = ssl.create_default_context(cadata=secrets.ca_bundle.decode())
    ours, theirs = socket.socketpair()
    done: list[ssl.SSLSocket] = []

    def serve() -> None:
        done.append(server.wrap_socket(theirs, server_side=True))

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="kyverno-svc.kyverno.svc") as wrapped:
        assert wrapped.version() == "TLSv1.3"
    thread.join()
    done[0].close()


def test_secrets_of_another_program_are_awaited_and_never_written() -> None:
    """Not even if they are missing, expired or signed by an unknown authority."""
    others = CertificateRules(algorithm="ECDSA", is_external=True)
    with running() as api:
        waiting = keep(api, NOW, others)
        assert (waiting.ca_bundle, waiting.certificate) == (b"", b"")
        assert [problem.split(",")[0] for problem in waiting.problems] == [
            "waiting for Secret kyverno-svc.kyverno.svc.kyverno-tls-ca",
            "waiting for Secret kyverno-svc.kyverno.svc.kyverno-tls-pair",
        ]
        assert api.objects == {}
        made = keep(api, NOW)
        before = dict(api.objects)
        assert keep(api, NOW + 1000 * DAY, others) == made
        api.remove(f"{PATH}pair")
        assert len(keep(api, NOW, others).problems) == 1
        assert set(api.objects) < set(before)
        assert not api.count("^(PUT|PATCH|DELETE)")
