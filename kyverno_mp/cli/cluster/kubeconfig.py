"""Load kubeconfigs like kubectl, with the credentials that they name.

Room: cli. Takes: files in their order, a context, the environment. Gives: Access.
Next: access. May touch: these files and the files that they name, the program of a
credential plugin, the issuer of an OIDC login.
Source: client-go tools/clientcmd (loading rules), plugin/pkg/client/auth/oidc.

The official client is used only to renew logins, because it differs from kubectl: it
takes the current context from the last file, resolves the user's relative paths against
the cluster's file, reads a token file only once and with its line end, writes keys to
files, quotes users with their tokens in errors, and calls the cluster anonymously if a
plugin fails.
"""

import base64
import binascii
import contextlib
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from kyverno_mp.cli.cluster.credential_plugin import credentials_of
from kyverno_mp.cli.output.files import replace_private
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.kube.access import Access, at_url, pem_of

_PATHS: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
    "context": (),
}
_LOGIN: Final = ("id-token", "refresh-token")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster, user or context, and the file that defines it."""

    file: Path
    block: dict[str, Any]


def load_access(files: Sequence[Path], context: str, env: Mapping[str, str]) -> Access:
    """Load the given or the current context of the merged files.

    Raises: SettingInvalid (``kube.kubeconfig``, ``kube.plugin``, ``kube.login``,
    ``kube.proxy``, ``kube.server``, ``kube.file``). The message names the file and
    never quotes its content.
    """
    entries, current = _merged(files)
    name = context or current
    chosen = _named(entries, files, "context", name)
    cluster = _named(entries, files, "cluster", str(chosen.block.get("cluster") or ""))
    user = _Entry(chosen.file, {})
    if chosen.block.get("user"):
        user = _named(entries, files, "user", str(chosen.block["user"]))
    user = _with_plugin(user, cluster, env)
    _refuse_unsupported_auth(user)
    access = _access_of(cluster, user)
    return replace(access, namespace=str(chosen.block.get("namespace") or ""))


def _merged(files: Sequence[Path]) -> tuple[dict[tuple[str, str], _Entry], str]:
    """Return the entries and the current context; the first entry with a name wins."""
    entries: dict[tuple[str, str], _Entry] = {}
    current = ""
    for file in files:
        config = _read(file)
        current = current or str(config.get("current-context") or "")
        for kind in _PATHS:
            try:
                for entry in config.get(f"{kind}s") or ():
                    block = _absolute(entry.get(kind) or {}, kind, file)
                    entries.setdefault((kind, str(entry["name"])), _Entry(file, block))
            except (AttributeError, KeyError, TypeError, ValueError):
                # The original error would quote the entry, with its secrets.
                message = f"{file}: {kind}s is not a list of named entries"
                raise SettingInvalid("kube.kubeconfig", message) from None
    return entries, current


def _read(file: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        message = f"cannot read {file}: {reason}"
        raise SettingInvalid("kube.file", message) from error
    except yaml.YAMLError:
        # The original error would quote a line, which may contain a token.
        raise SettingInvalid("kube.kubeconfig", f"{file} is not YAML") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise SettingInvalid("kube.kubeconfig", f"{file} is not a kubeconfig")
    return config


def _absolute(block: Mapping[str, Any], kind: str, file: Path) -> dict[str, Any]:
    """Resolve paths against the kubeconfig's folder; drop empty values."""
    fields = {key: value for key, value in block.items() if value not in (None, "")}
    folder = file.parent.absolute()
    return fields | {
        key: str(folder / fields[key]) for key in _PATHS[kind] if key in fields
    }


def _named(
    entries: Mapping[tuple[str, str], _Entry],
    files: Sequence[Path],
    kind: str,
    name: str,
) -> _Entry:
    entry = entries.get((kind, name))
    if entry is None:
        paths = ", ".join(map(str, files))
        raise SettingInvalid("kube.kubeconfig", f"{paths}: no {kind} named {name!r}")
    return entry


def _with_plugin(user: _Entry, cluster: _Entry, env: Mapping[str, str]) -> _Entry:
    """Replace an ``exec`` block by the credentials that its program returns."""
    block = dict(user.block)
    if "exec" not in block:
        return user
    credentials = credentials_of(block.pop("exec"), user.file, cluster.block, env)
    return _Entry(user.file, block | credentials)


def _refuse_unsupported_auth(user: _Entry) -> None:
    provider = user.block.get("auth-provider") or {}
    named = provider.get("name") if isinstance(provider, dict) else ""
    if provider and named != "oidc":
        # K8S: kubectl no longer supports other auth-providers; they became plugins.
        message = f"{user.file}: no auth-provider {named!r}; use a credential plugin"
        raise SettingInvalid("kube.kubeconfig", message)
    if "username" in user.block:
        # K8S: API servers accept no passwords since 1.19.
        message = f"{user.file}: user name and password are not supported"
        raise SettingInvalid("kube.kubeconfig", message)


def _access_of(cluster: _Entry, user: _Entry) -> Access:
    token = str(user.block.get("token") or "")
    if "auth-provider" in user.block:
        token = _login_token(user)
    return replace(
        at_url(str(cluster.block.get("server") or "")),
        ca_pem=pem_of(cluster.block, "certificate-authority", cluster.file),
        insecure=cluster.block.get("insecure-skip-tls-verify") is True,
        server_name=str(cluster.block.get("tls-server-name") or ""),
        client_cert_pem=pem_of(user.block, "client-certificate", user.file),
        client_key_pem=pem_of(user.block, "client-key", user.file),
        token=token,
        token_file=str(user.block.get("tokenFile") or ""),
        proxy=_proxy_of(cluster),
    )


def _login_token(user: _Entry) -> str:
    """Return the token of an OIDC login; the official client renews expired tokens."""
    # PERF: this import takes 30 MiB and 0.5 s; only OIDC logins need it.
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config_from_dict
    except ImportError as error:
        message = f"{user.file}: an OIDC login needs the package kubernetes"
        raise SettingInvalid("kube.login", message) from error
    provider = deepcopy(user.block["auth-provider"])
    login = _login_of({"auth-provider": provider})
    before = dict(login)
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://unused"}}],
        "users": [{"name": "u", "user": {"auth-provider": provider}}],
    }
    loaded = Configuration()
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-") as folder:
        _trust_issuer(login, Path(folder))
        try:
            load_kube_config_from_dict(config, client_configuration=loaded)
        except Exception as error:  # noqa: BLE001 - it raises what its libraries raise
            # The original error is not quoted or chained: it may contain secrets.
            kind = type(error).__name__
            message = f"{user.file}: the OIDC login cannot be used or renewed ({kind})"
            raise SettingInvalid("kube.login", message) from None
    if any(login.get(key) != before.get(key) for key in _LOGIN):
        _keep_login(user, before, login)
    # Its key has another name in each major version of the client.
    token = str(next(iter(loaded.api_key.values()), "")).removeprefix("Bearer ")
    if not token:
        raise SettingInvalid("kube.login", f"{user.file}: the id-token is not a JWT")
    return token


def _login_of(block: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an OIDC login; a renewal changes them in place."""
    provider = block.get("auth-provider")
    if provider is None:
        return {}
    login = provider.get("config") if isinstance(provider, dict) else None
    return login if isinstance(login, dict) else {}


def _trust_issuer(login: dict[str, Any], folder: Path) -> None:
    """Set the issuer's CA, and allow a client without a secret.

    Without a CA, the official client would not verify the issuer's certificate.
    """
    if not login:
        return
    login.setdefault("client-secret", "")
    data = login.pop("idp-certificate-authority-data", "")
    if data:
        file = folder / "issuer"
        with contextlib.suppress(binascii.Error, TypeError, ValueError):
            file.write_bytes(base64.b64decode(data, validate=True))
        login["idp-certificate-authority"] = str(file)
    elif not login.get("idp-certificate-authority"):
        import certifi

        system = ssl.get_default_verify_paths().cafile
        login["idp-certificate-authority"] = system or certifi.where()


def _keep_login(
    user: _Entry, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Replace the old tokens in the file by renewed tokens, like kubectl.

    An issuer may accept each refresh token only once, so the old token may be invalid.
    """
    file = user.file.resolve()
    config = _read(file)
    for entry in config.get("users") or ():
        login = _login_of(entry.get("user") or {})
        if all(login.get(key) == before.get(key) for key in _LOGIN):
            login.update({key: now[key] for key in _LOGIN if key in now})
    try:
        replace_private(file, yaml.safe_dump(config, sort_keys=False))
    except OSError as error:
        message = f"{user.file}: the renewed login cannot be kept"
        raise SettingInvalid("kube.login", message) from error


def _proxy_of(cluster: _Entry) -> str:
    """Return the address of the HTTP proxy, "" without a proxy."""
    url = str(cluster.block.get("proxy-url") or "")
    if not url:
        return ""
    server = str(cluster.block.get("server") or "")
    if urlsplit(url).scheme == "http" and urlsplit(server).scheme == "https":
        return url
    message = f"{cluster.file}: only http:// proxies to https:// servers are supported"
    raise SettingInvalid("kube.proxy", message)
