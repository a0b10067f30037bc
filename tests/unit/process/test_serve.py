"""Inputs that ``serve`` rejects before it starts anything."""

import dataclasses
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.process.serve import serve
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.process.startup.policy_folder import why_without_policies
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


def test_unservable_certificate_is_rejected(tmp_path: Path) -> None:
    own = make(tmp_path, "kyverno")
    text = tmp_path / "text"
    text.write_text("x")
    for cert, key, reason in (
        (text, text, "not PEM"),
        (own.cert, _key(tmp_path / "other.key"), "KEY_VALUES_MISMATCH"),
        # The user is not prompted for the pass phrase.
        (own.cert, _key(tmp_path / "locked", pass_phrase=b"word"), "a pass phrase"),
        (own.cert, tmp_path, "cannot be read: Is a directory"),
    ):
        error = _refusal(tmp_path, cert, key)
        assert error.code == "settings.invalid"
        assert error.message.startswith("KYVERNO_MP_TLS_CERT_FILE")
        assert reason in error.message


def test_unservable_certificate_of_metrics_is_rejected(tmp_path: Path) -> None:
    own = make(tmp_path, "kyverno")
    for key, reason in (
        (_key(tmp_path / "other.key"), "KEY_VALUES_MISMATCH"),
        (tmp_path / "none", "none does not exist"),
    ):
        settings = Settings(
            standalone=True,
            allow_empty=True,
            policies_dir=str(tmp_path),
            runtime_dir=str(tmp_path / "run"),
            metrics_tls=True,
            metrics_cert_file=str(own.cert),
            metrics_key_file=str(key),
        )
        with pytest.raises(SettingInvalid) as caught:
            serve(settings)
        assert "KYVERNO_MP_METRICS_" in caught.value.message
        assert reason in caught.value.message


POLICY = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: a}
spec: {rules: []}
"""


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "contains no policy: 0 YAML or JSON files"),
        ({"a.txt": POLICY}, "contains no policy: 0 YAML or JSON files"),
        ({"a.yaml": "kind: Pod"}, "documents of other kinds: Pod (1)"),
        ({"a.yaml": "kind: ["}, "a.yaml"),
        # A folder that contains only exceptions denies nothing.
        ({"a.yaml": POLICY.replace("ClusterPolicy", "PolicyException")}, "(1)"),
    ],
)
def test_folder_without_a_policy_is_rejected(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    """Otherwise a wrong path would allow everything."""
    folder = tmp_path / "policies"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    settings = Settings(
        standalone=True, policies_dir=str(folder), runtime_dir=str(tmp_path / "run")
    )
    with pytest.raises(SettingInvalid) as caught:
        serve(settings)
    assert str(folder) in caught.value.message
    assert reason in caught.value.message
    assert "--allow-empty" in caught.value.message
    # A second problem keeps the service from starting where the folder is accepted.
    accepted = dataclasses.replace(
        settings, allow_empty=True, api_call_token_file=str(tmp_path / "none")
    )
    with pytest.raises(SettingInvalid) as caught:
        serve(accepted)
    assert "POLICIES_DIR" not in caught.value.message


def test_folder_with_one_policy_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: [")
    (tmp_path / "b.yaml").write_text("kind: Pod\n---\n" + POLICY)
    assert why_without_policies(str(tmp_path)) == ""
    assert why_without_policies(str(tmp_path / "b.yaml")) == ""
    in_cel = "apiVersion: policies.kyverno.io/v1\nkind: ValidatingPolicy\nspec: {}\n"
    (tmp_path / "c.yaml").write_text(in_cel)
    assert why_without_policies(str(tmp_path / "c.yaml")) == ""


def test_unreadable_folder_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str) -> None:
        raise PermissionError(13, "Permission denied")

    # A mode of 0 does not restrict root, who may run the tests.
    monkeypatch.setattr("os.scandir", refuse)
    reason = why_without_policies(str(tmp_path))
    assert reason == f"{tmp_path} cannot be read: Permission denied"
