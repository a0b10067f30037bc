"""What ``serve`` refuses before it starts anything."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.process.certificate import make
from kyverno_mp.process.serve import serve
from kyverno_mp.settings.settings import Settings


def _key(path: Path, *, pass_phrase: bytes = b"") -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if pass_phrase:
        lock = serialization.BestAvailableEncryption(pass_phrase)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock
    )
    path.write_bytes(pem)
    return path


def _refusal(folder: Path, cert: Path, key: Path) -> SettingInvalid:
    settings = Settings(
        standalone=True,
        policies_dir=str(folder),
        runtime_dir=str(folder / "run"),
        tls_cert_file=str(cert),
        tls_key_file=str(key),
    )
    with pytest.raises(SettingInvalid) as caught:
        serve(settings)
    assert not (folder / "run").exists()
    return caught.value


def test_a_certificate_that_no_worker_could_serve_is_refused(tmp_path: Path) -> None:
    own = make(tmp_path, "kyverno")
    text = tmp_path / "text"
    text.write_text("x")
    for cert, key, reason in (
        (text, text, "not PEM"),
        (own.cert, _key(tmp_path / "other.key"), "KEY_VALUES_MISMATCH"),
        # Nobody is asked for the pass phrase.
        (own.cert, _key(tmp_path / "locked", pass_phrase=b"word"), "a pass phrase"),
        (own.cert, tmp_path, "cannot be read: Is a directory"),
    ):
        error = _refusal(tmp_path, cert, key)
        assert error.code == "settings.invalid"
        assert error.message.startswith("KYVERNO_MP_TLS_CERT_FILE")
        assert reason in error.message
