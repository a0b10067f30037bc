"""Credentials are read from docker's config.json; no message contains secrets."""

import base64
import json
import traceback
from pathlib import Path

import pytest

from kyverno_mp.errors import DeadlinePassed, SettingInvalid
from kyverno_mp.registry.credentials import ANONYMOUS, Credentials, DockerConfig
from tests.waiting import real_ns

_PAIR = base64.b64encode(b"robot:pass:word").decode()
_ROBOT = Credentials("robot", "pass:word")


def _config(folder: Path, content: object) -> DockerConfig:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text)
    return DockerConfig(folder)


@pytest.mark.parametrize(
    ("key", "host", "expected"),
    [
        ("ghcr.io", "ghcr.io", _ROBOT),
        ("https://ghcr.io", "ghcr.io", _ROBOT),
        ("https://ghcr.io/v2/", "ghcr.io", _ROBOT),
        ("ghcr.io:5000", "ghcr.io:5000", _ROBOT),
        ("ghcr.io", "ghcr.io:5000", ANONYMOUS),
        ("ghcr.io", "evil.ghcr.io", ANONYMOUS),
        ("https://index.docker.io/v1/", "index.docker.io", _ROBOT),
        ("docker.io", "index.docker.io", _ROBOT),
    ],
)
def test_host(tmp_path: Path, key: str, host: str, expected: Credentials) -> None:
    config = _config(tmp_path, {"auths": {key: {"auth": _PAIR}}})
    assert config.credentials(host) == expected


def test_tokens(tmp_path: Path) -> None:
    entry = {"identitytoken": "i", "registrytoken": "r"}
    config = _config(tmp_path, {"auths": {"h.io": entry}, "experimental": True})
    expected = Credentials(identity_token="i", registry_token="r")
    assert config.credentials("h.io") == expected


def test_without_a_file(tmp_path: Path) -> None:
    assert DockerConfig(tmp_path / "none").credentials("h.io") == ANONYMOUS


@pytest.mark.parametrize(
    "content",
    [
        "{hidden-word",
        '{"auths": {"h.io": "hidden-word"}}',
        {"auths": {"h.io": {"auth": "hidden-word!"}}},
        {"credsStore": "../hidden-word"},
        {"credsStore": "kyverno-mp-none"},
    ],
)
def test_unusable(tmp_path: Path, content: object) -> None:
    with pytest.raises(SettingInvalid) as caught:
        _config(tmp_path, content).credentials("h.io")
    assert caught.value.code == "registry.credentials"
    assert "hidden-word" not in caught.value.message
    assert "hidden-word" not in "".join(
        line
        for line in traceback.format_exception(caught.value)
        if "content" not in line
    )


def test_no_secret_in_a_representation() -> None:
    shown = repr(Credentials("robot", "hidden", "hidden", "hidden"))
    assert "hidden" not in shown


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo \'{"Username":"robot","Secret":"pass:word"}\'', _ROBOT),
        (
            'echo \'{"Username":"<token>","Secret":"t"}\'',
            Credentials(identity_token="t"),
        ),
        ("echo credentials not found in native keychain; exit 1", ANONYMOUS),
        (
            '[ "$(cat)" = h.io ] && echo \'{"Username":"robot","Secret":"pass:word"}\'',
            _ROBOT,
        ),
    ],
)
def test_helper(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    expected: Credentials,
) -> None:
    program = tmp_path / "docker-credential-given"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = _config(tmp_path, {"credHelpers": {"h.io": "given"}})
    assert config.credentials("h.io") == expected
    assert config.credentials("other.io") == ANONYMOUS


def test_helper_failure_is_reported_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker-credential-given"
    program.write_text("#!/bin/sh\necho hidden-word; exit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SettingInvalid, match="docker-credential-given exited with 3"):
        _config(tmp_path, {"credsStore": "given"}).credentials("h.io")


def test_helper_timeout_is_the_callers_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker-credential-given"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config = _config(tmp_path, {"credsStore": "given"})
    for left_ns in (100_000_000, 0):
        with pytest.raises(DeadlinePassed):
            config.credentials("h.io", real_ns() + left_ns)


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    """Other programs that write the file refresh its tokens."""
    config = DockerConfig(tmp_path)
    assert config.credentials("h.io") == ANONYMOUS
    _config(tmp_path, {"auths": {"h.io": {"auth": _PAIR}}})
    assert config.credentials("h.io") == _ROBOT
    new = tmp_path / "new"
    new.mkdir()
    _config(new, {"auths": {"h.io": {"username": "next", "password": "p"}}})
    (new / "config.json").rename(tmp_path / "config.json")
    assert config.credentials("h.io") == Credentials("next", "p")
    (tmp_path / "config.json").unlink()
    assert config.credentials("h.io") == ANONYMOUS
