"""Find the API server's address and the credentials of this process.

Room: kube. Takes: a kubeconfig, or the files mounted in every pod. Gives: Access.
Next: kube/pool.py. May touch: the kubeconfig and the files it names.
Source: Kubernetes client-go rest.InClusterConfig, tools/clientcmd (contexts, *-data).
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.values.jsonvalue import Json

SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The API server's address and the credentials; its repr hides secrets.

    ``token_file`` wins over ``token`` and is read again when it changes.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    ca_pem: str = field(default="", repr=False)
    insecure: bool = False
    server_name: str = ""
    client_cert_pem: str = field(default="", repr=False)
    client_key_pem: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    namespace: str = ""
    proxy: str = field(default="", repr=False)
    """``http://[user:password@]host[:port]``: the proxy for all connections."""


def access_of(kubeconfig: str, environment: Mapping[str, str]) -> Access:
    """Use the kubeconfig if one is configured, else the pod's ServiceAccount.

    Raises: SettingInvalid.
    """
    if kubeconfig:
        return from_kubeconfig(Path(kubeconfig))
    return in_cluster(environment)


def in_cluster(
    environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT_DIR
) -> Access:
    """Use the files that the kubelet mounted into this pod.

    Raises: SettingInvalid (``kube.not_in_cluster``).
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port.isdigit():
        raise SettingInvalid(
            "kube.not_in_cluster",
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
        )
    namespace = directory / "namespace"
    return Access(
        scheme="https",
        host=host,
        port=int(port),
        ca_pem=_text_of(directory / "ca.crt"),
        token_file=str(directory / "token"),
        namespace=_text_of(namespace).strip() if namespace.exists() else "",
    )


def from_kubeconfig(path: Path) -> Access:
    """Use the current context of a plain kubeconfig.

    The service runs no programs and renews no logins, so a user that needs either is
    rejected. Raises: SettingInvalid (``kube.kubeconfig``).
    """
    try:
        config = yaml.safe_load(_text_of(path))
    except yaml.YAMLError as error:
        raise SettingInvalid("kube.kubeconfig", f"{path} is not YAML") from error
    if not isinstance(config, dict):
        raise SettingInvalid("kube.kubeconfig", f"{path} is not a kubeconfig")
    name = config.get("current-context", "")
    chosen = _named(config, "contexts", name, "context")
    cluster = _named(config, "clusters", chosen.get("cluster", ""), "cluster")
    user = _named(config, "users", chosen.get("user", ""), "user")
    if "exec" in user or "auth-provider" in user or "proxy-url" in cluster:
        raise SettingInvalid(
            "kube.kubeconfig",
            f"{path}: credential plugins and proxies are not supported",
        )
    access = at_url(str(cluster.get("server", "")))
    return replace(
        access,
        ca_pem=pem_of(cluster, "certificate-authority", path),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        server_name=str(cluster.get("tls-server-name") or ""),
        client_cert_pem=pem_of(user, "client-certificate", path),
        client_key_pem=pem_of(user, "client-key", path),
        token=str(user.get("token") or ""),
        token_file=_beside(path, str(user.get("tokenFile") or "")),
        namespace=str(chosen.get("namespace") or ""),
    )


def at_url(url: str) -> Access:
    """Use an address without credentials.

    Raises: SettingInvalid (``kube.server``).
    """
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if not parts.hostname or not port:
        raise SettingInvalid("kube.server", f"{url!r} is not a server address")
    return Access(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        prefix=parts.path.rstrip("/"),
    )


def _named(config: dict[str, Json], kind: str, name: str, key: str) -> dict[str, Json]:
    for entry in config.get(kind) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.get(key) or {}
            if isinstance(value, dict):
                return value
    raise SettingInvalid("kube.kubeconfig", f"kubeconfig has no {key} named {name!r}")


def pem_of(block: dict[str, Json], name: str, path: Path) -> str:
    """Return PEM text given inline as base64 or as a file beside the kubeconfig.

    Raises: SettingInvalid.
    """
    inline = block.get(f"{name}-data")
    if inline:
        try:
            return base64.b64decode(inline, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError, ValueError) as error:
            raise SettingInvalid(
                "kube.kubeconfig", f"{path}: {name}-data is not base64 of PEM"
            ) from error
    file = block.get(name)
    return _text_of(Path(_beside(path, str(file)))) if file else ""


def _beside(path: Path, name: str) -> str:
    return str(path.parent / name) if name else ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        message = f"cannot read {path}: {reason}"
        raise SettingInvalid("kube.file", message) from error
