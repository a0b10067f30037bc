"""The choice of the cluster and of the credentials."""

import base64
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.cluster.access import find_access
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


def test_flag_has_precedence_over_the_environment(tmp_path: Path) -> None:
    flag = write(tmp_path / "flag", {})
    env = {"KUBECONFIG": str(write(tmp_path / "env", {})), "HOME": str(tmp_path)}
    assert find_access(str(flag), "", env).host == "flag.example.org"
    assert find_access("", "", env).host == "env.example.org"


def part(file: Path, **named: Any) -> Path:
    """Write a kubeconfig with single entries: ``cluster={"c": {...}}``."""
    config = {
        f"{kind}s": [{"name": name, kind: block} for name, block in entries.items()]
        for kind, entries in named.items()
        if kind != "current"
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config | {"current-context": named.get("current", "")}))
    return file


def cluster(host: str, **more: Any) -> dict[str, Any]:
    return {"server": f"https://{host}.example.org:6443", **more}


def test_files_are_merged_and_the_first_name_wins(tmp_path: Path) -> None:
    """As in kubectl, a context in one file may name a cluster in another file."""
    one = part(
        tmp_path / "one",
        context={"a": {"cluster": "c", "user": "u"}},
        cluster={"c": cluster("first")},
        current="a",
    )
    two = part(
        tmp_path / "two",
        context={"b": {"cluster": "d", "user": "u"}, "a": {"cluster": "d"}},
        cluster={"c": cluster("second"), "d": cluster("other")},
        user={"u": {"token": "t"}},
        current="b",
    )
    (tmp_path / "empty").touch()
    env = {"KUBECONFIG": f"{tmp_path / 'gone'}::{tmp_path / 'empty'}:{one}:{two}"}
    found = find_access("", "", env)
    assert (found.host, found.token) == ("first.example.org", "t")
    assert find_access("", "b", env).host == "other.example.org"
    with pytest.raises(SettingInvalid, match="no context named 'c'") as raised:
        find_access("", "c", env)
    assert str(two) in str(raised.value)


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    one = part(
        tmp_path / "1" / "config",
        context={"a": {"cluster": "c", "user": "u", "namespace": "n"}},
        cluster={"c": cluster("x", **{"certificate-authority": "ca.crt"})},
        current="a",
    )
    user = {"client-certificate": "my.crt", "client-key": "my.key"}
    two = part(tmp_path / "2" / "config", user={"u": {**user, "tokenFile": "token"}})
    for name, text in (("1/ca.crt", "CA"), ("2/my.crt", "CRT"), ("2/my.key", "KEY")):
        (tmp_path / name).write_text(text)
    (tmp_path / "2" / "token").write_text("t\n")
    found = find_access("", "", {"KUBECONFIG": f"{one}:{two}"})
    assert (found.ca_pem, found.client_cert_pem) == ("CA", "CRT")
    assert (found.client_key_pem, found.namespace) == ("KEY", "n")
    assert found.token_file == str(tmp_path / "2" / "token")
    (tmp_path / "2" / "my.key").unlink()
    with pytest.raises(SettingInvalid, match=r"cannot read .*2/my\.key"):
        find_access("", "", {"KUBECONFIG": f"{one}:{two}"})


def test_tls_settings(tmp_path: Path) -> None:
    inline = {"certificate-authority-data": encoded("CA"), "tls-server-name": "api"}
    user = {"client-certificate-data": encoded("C"), "client-key-data": encoded("K")}
    file = part(
        tmp_path / "k",
        context={"a": {"cluster": "c", "user": "u"}, "b": {"cluster": "d"}},
        cluster={
            "c": cluster("x", **inline),
            "d": {"server": "https://y/pre/", "insecure-skip-tls-verify": True},
        },
        user={"u": user},
        current="a",
    )
    found = find_access(str(file), "", {})
    assert (found.ca_pem, found.server_name, found.insecure) == ("CA", "api", False)
    assert (found.client_cert_pem, found.client_key_pem) == ("C", "K")
    found = find_access(str(file), "b", {})
    assert (found.host, found.port, found.prefix) == ("y", 443, "/pre")
    assert (found.insecure, found.token, found.server_name) == (True, "", "")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_no_key_file_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    user = {"client-certificate-data": encoded("C"), "client-key-data": encoded("K")}
    file = write(tmp_path / "k", user)
    for _ in range(2):
        assert find_access(str(file), "", {}).client_key_pem == "K"
    assert not list((tmp_path / "tmp").rglob("*"))


def test_proxy(tmp_path: Path) -> None:
    def at(proxy: str, server: str = "https://x") -> Path:
        return part(
            tmp_path / "k",
            context={"a": {"cluster": "c"}},
            cluster={"c": {"server": server, "proxy-url": proxy}},
            current="a",
        )

    found = find_access(str(at("http://u:secret@proxy:3128")), "", {})
    assert found.proxy == "http://u:secret@proxy:3128"
    assert "secret" not in repr(found)
    for proxy, server in (
        ("socks5://secret:1", "https://x"),
        ("https://secret:1", "https://x"),
        ("http://secret:1", "http://x"),
    ):
        with pytest.raises(SettingInvalid, match="proxies") as raised:
            find_access(str(at(proxy, server)), "", {})
        assert raised.value.code == "kube.proxy"
        assert "secret" not in str(raised.value)


WITHOUT_ITS_USER = """
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://x'}}]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not YAML"),
        ("- a", "is not a kubeconfig"),
        ("users: [{name: u, user: secret}]", "users is not a list of named entries"),
        ("users: [{user: {token: secret}}]", "users is not a list of named entries"),
        ("clusters: 5", "clusters is not a list of named entries"),
        ("current-context: a\ncontexts: [{name: a}]", "no cluster named ''"),
        (
            WITHOUT_ITS_USER,
            "no user named 'u'",
        ),
    ],
)
def test_invalid_files_are_named_without_their_content(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(SettingInvalid, match=message) as raised:
        find_access(str(tmp_path / "k"), "", {})
    assert raised.value.code == "kube.kubeconfig"
    assert str(tmp_path / "k") in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"client-key-data": encoded("x")[1:]}, "not base64 of PEM"),
        ({"username": "u", "password": "secret"}, "user name and password"),
        ({"auth-provider": {"name": "gcp", "config": {}}}, "'gcp'"),
        ({"client-key-data": "no base64!"}, "not base64 of PEM"),
    ],
)
def test_rejected_users(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingInvalid, match=message) as raised:
        find_access(str(write(tmp_path / "k", user)), "", {})
    assert raised.value.code == "kube.kubeconfig"
    assert "secret" not in str(raised.value)


def token(expires_s: float) -> str:
    claims = json.dumps({"exp": time.time() + expires_s}).encode()
    parts = (b"{}", claims, b"signature")
    return ".".join(
        base64.urlsafe_b64encode(item).decode().rstrip("=") for item in parts
    )


def login(id_token: str, **more: str) -> dict[str, Any]:
    config = {"id-token": id_token, "refresh-token": "secret", "client-id": "me"}
    return {"auth-provider": {"name": "oidc", "config": config | more}}


def test_valid_login(tmp_path: Path) -> None:
    valid = token(3600)
    file = write(tmp_path / "k", login(valid))
    before = file.read_bytes()
    assert find_access(str(file), "", {}).token == valid
    assert file.read_bytes() == before


def test_login_that_cannot_be_renewed(tmp_path: Path) -> None:
    user = login(token(-1), **{"idp-issuer-url": "https://127.0.0.1:1"})
    for broken in (user, login("no.jwt"), login("a.b.c")):
        with pytest.raises(SettingInvalid) as raised:
            find_access(str(write(tmp_path / "k", broken)), "", {})
        assert raised.value.code == "kube.login"
        assert str(tmp_path / "k") in str(raised.value)
        assert "secret" not in str(raised.value)


def test_default_namespace_is_that_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", {"token": "t"})
    found = find_access("", "", {"HOME": str(tmp_path)})
    assert (found.host, found.token) == ("config.example.org", "t")


def plugin(
    folder: Path, answer: object, code: int = 0, api: str = API
) -> dict[str, Any]:
    """Write a program that records its input and answers; return its exec block."""
    script = folder / "plugin"
    text = answer if isinstance(answer, str) else json.dumps(answer)
    script.write_text(
        f'#!/bin/sh\nprintf \'%s %s %s\' "$1" "$EXTRA" "$KUBERNETES_EXEC_INFO"'
        f" > {folder}/asked\ncat <<'END'\n{text}\nEND\nexit {code}\n"
    )
    script.chmod(0o700)
    block = {"apiVersion": api, "command": "./plugin", "args": ["get"]}
    return {"exec": {**block, "env": [{"name": "EXTRA", "value": "1"}]}}


def credential(*, api: str = API, **status: str) -> dict[str, Any]:
    return {"apiVersion": api, "kind": "ExecCredential", "status": status}


@pytest.mark.parametrize("api", [API, f"{API}beta1"])
def test_plugin_returns_a_token(tmp_path: Path, api: str) -> None:
    answer = credential(api=api, token="secret")
    file = write(tmp_path / "k", plugin(tmp_path, answer, api=api))
    assert find_access(str(file), "", {"PATH": "/bin:/usr/bin"}).token == "secret"
    argument, extra, info = (tmp_path / "asked").read_text().split(" ", 2)
    assert (argument, extra) == ("get", "1")
    assert json.loads(info) == {
        "apiVersion": api,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


def test_plugin_receives_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    block = plugin(tmp_path, credential(token="t"))["exec"]
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"k": 1}}
    more = {"certificate-authority": "ca.crt", "extensions": [extension]}
    file = part(
        tmp_path / "k",
        context={"a": {"cluster": "c", "user": "u"}},
        cluster={"c": cluster("x", **more)},
        user={"u": {"exec": {**block, "provideClusterInfo": True}}},
        current="a",
    )
    find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
    info = (tmp_path / "asked").read_text().split(" ", 2)[2]
    assert json.loads(info)["spec"]["cluster"] == {
        "server": "https://x.example.org:6443",
        "certificate-authority-data": encoded("CA"),
        "config": {"k": 1},
    }


def test_plugin_returns_a_certificate(tmp_path: Path) -> None:
    answer = credential(clientCertificateData="CERT", clientKeyData="KEY")
    file = write(tmp_path / "k", plugin(tmp_path, answer))
    found = find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
    assert (found.client_cert_pem, found.client_key_pem) == ("CERT", "KEY")
    assert base64.b64encode(b"KEY").decode() not in repr(found)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("nothing", 0, "not an ExecCredential"),
        (credential(), 0, "no credentials"),
        (credential(api=f"{API}beta1", token="t"), 0, "no credentials"),
        (credential(token="t"), 3, "exit code 3"),
    ],
)
def test_failing_plugin(
    tmp_path: Path, answer: object, code: int, message: str
) -> None:
    file = write(tmp_path / "k", plugin(tmp_path, answer, code))
    with pytest.raises(SettingInvalid, match=message) as raised:
        find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
    assert raised.value.code == "kube.plugin"
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": "./gone"}, "No such file"),
        ({"command": "./gone", "installHint": "install it"}, "install it"),
        ({"command": ""}, "needs command"),
        ({"interactiveMode": "Always"}, "needs user input"),
        ({"env": ["A=1"]}, "not a valid plugin configuration"),
    ],
)
def test_plugin_that_cannot_run(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    block = plugin(tmp_path, credential(token="t"))["exec"]
    file = write(tmp_path / "k", {"exec": {**block, **change}})
    with pytest.raises(SettingInvalid, match=message) as raised:
        find_access(str(file), "", {"PATH": "/bin:/usr/bin"})
    assert raised.value.code == "kube.plugin"
    assert str(file) in str(raised.value)
