"""Which cluster is meant, and with whose credentials."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.cluster_access import find_access
from kyverno_mp.errors import SettingInvalid

API = "client.authentication.k8s.io/v1"


def write(file: Path, user: dict[str, Any], context: str = "x") -> Path:
    address = {"server": f"https://{file.stem}.example.org:6443"}
    named = {
        "clusters": [{"name": "c", "cluster": address}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
    }
    file.write_text(json.dumps({**named, "current-context": context}))
    return file


def test_the_flag_goes_before_the_environment(tmp_path: Path) -> None:
    flag = write(tmp_path / "flag", {})
    env = {"KUBECONFIG": str(write(tmp_path / "env", {})), "HOME": str(tmp_path)}
    assert find_access(str(flag), "", env).host == "flag.example.org"
    assert find_access("", "", env).host == "env.example.org"


def test_of_several_files_the_one_with_the_context_counts(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", {}, "a"), write(tmp_path / "two", {}, "b")
    env = {"KUBECONFIG": f"{tmp_path / 'gone'}:{one}:{two}"}
    assert find_access("", "", env).host == "one.example.org"
    assert find_access("", "b", env).host == "two.example.org"
    with pytest.raises(SettingInvalid, match="no context named 'c'"):
        find_access("", "c", env)


def test_without_either_that_of_the_user_counts(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", {"token": "t"})
    found = find_access("", "", {"HOME": str(tmp_path)})
    assert (found.host, found.token) == ("config.example.org", "t")


def plugin(folder: Path, answer: object, code: int = 0) -> dict[str, Any]:
    """Write a program that keeps what it was given and answers; return its block."""
    script = folder / "plugin"
    text = answer if isinstance(answer, str) else json.dumps(answer)
    script.write_text(
        f'#!/bin/sh\nprintf \'%s %s %s\' "$1" "$EXTRA" "$KUBERNETES_EXEC_INFO"'
        f" > {folder}/asked\ncat <<'END'\n{text}\nEND\nexit {code}\n"
    )
    script.chmod(0o700)
    block = {"apiVersion": API, "command": "./plugin", "args": ["get"]}
    return {"exec": {**block, "env": [{"name": "EXTRA", "value": "1"}]}}


def credential(**status: str) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ExecCredential", "status": status}


def test_a_plugin_gives_the_token(tmp_path: Path) -> None:
    file = write(tmp_path / "k", plugin(tmp_path, credential(token="secret")))
    assert find_access(str(file), "", {"PATH": "/bin:/usr/bin"}).token == "secret"
    argument, extra, info = (tmp_path / "asked").read_text().split(" ", 2)
    assert (argument, extra) == ("get", "1")
    assert json.loads(info) == {
        "apiVersion": API,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


def test_a_plugin_gives_a_certificate(tmp_path: Path) -> None:
    answer = credential(clientCertificateData="CERT", clientKeyData="KEY")
    file = write(tmp_path / "k", plugin(tmp_path, answer))
    found = find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
    assert (found.client_cert_pem, found.client_key_pem) == ("CERT", "KEY")
    assert base64.b64encode(b"KEY").decode() not in repr(found)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("nothing", 0, "no ExecCredential"),
        (credential(), 0, "no credentials"),
        ({**credential(token="t"), "apiVersion": f"{API}beta1"}, 0, "no credentials"),
        (credential(token="t"), 3, "exit code 3"),
    ],
)
def test_a_plugin_that_fails(
    tmp_path: Path, answer: object, code: int, message: str
) -> None:
    file = write(tmp_path / "k", plugin(tmp_path, answer, code))
    with pytest.raises(SettingInvalid, match=message):
        find_access(str(file), "", {"PATH": "/bin:/usr/bin"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": "./gone"}, "No such file"),
        ({"command": "./gone", "installHint": "install it"}, "install it"),
        ({"command": ""}, "needs command"),
        ({"interactiveMode": "Always"}, "wants to ask"),
    ],
)
def test_a_plugin_that_cannot_run(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    block = plugin(tmp_path, credential(token="t"))["exec"]
    file = write(tmp_path / "k", {"exec": {**block, **change}})
    with pytest.raises(SettingInvalid, match=message):
        find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
