"""Run the credential plugin that a kubeconfig names, like kubectl.

Room: cli. Takes: the ``exec`` block of a user. Gives: fields of a user: token, client
certificate. Next: kubeconfig. May touch: the program, which the user's own kubeconfig
names; the environment. The service never runs such a program.
Source: Kubernetes, "client-go credential plugins" (client.authentication.k8s.io).

It runs once per command: a token that expires during the command is not renewed. The
official client would let the program read the command's standard input, would wait for
it without a timeout, would drop a certificate returned with a token, and would call the
cluster anonymously if the program fails.
"""

import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.values.jsonvalue import Json

_API: Final = "client.authentication.k8s.io/"
_ASKED: Final = "KUBERNETES_EXEC_INFO"
_INFO_KEYS: Final = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)
_TIMEOUT_S: Final = 60
"""Time for programs that refresh a login on a server; they cannot prompt the user."""
_DATA: Final = {
    "clientCertificateData": "client-certificate-data",
    "clientKeyData": "client-key-data",
}


def credentials_of(
    block: Json, file: Path, cluster: Mapping[str, Json], env: Mapping[str, str]
) -> dict[str, str]:
    """Run the program that ``block`` of the kubeconfig ``file`` names.

    Raises: SettingInvalid (``kube.plugin``).
    """
    try:
        command, added, api = _command_of(block, file)
        question = _question_of(block, cluster, api)
        return _fields_of(_run(command, {**env, **added, _ASKED: question}), api)
    except _Failed as error:
        raise _invalid(file, f"{_program_of(block)}: {error}") from error.__cause__
    except OSError as error:
        hint = str(block.get("installHint") or error.strerror)
        raise _invalid(file, f"{_program_of(block)}: {hint}") from error
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _invalid(file, "exec is not a valid plugin configuration") from None


class _Failed(Exception):
    """The program cannot be run, or returned no credentials."""


def _program_of(block: Mapping[str, Json]) -> str:
    return str(block.get("command") or "exec")


def _command_of(
    block: Mapping[str, Json], file: Path
) -> tuple[list[str], dict[str, str], str]:
    """Return the command line, the additional environment, the API version."""
    api = str(block.get("apiVersion") or "")
    program = str(block.get("command") or "")
    if not api.startswith(_API) or not program:
        raise _Failed("needs command and apiVersion")
    if block.get("interactiveMode") == "Always":
        raise _Failed("needs user input (interactiveMode)")
    if "/" in program:
        # K8S: a path is relative to the kubeconfig, a name is looked up in PATH.
        program = str(file.parent / program)
    added = {
        str(variable["name"]): str(variable["value"])
        for variable in block.get("env") or ()
    }
    return [program, *(str(part) for part in block.get("args") or ())], added, api


def _question_of(
    block: Mapping[str, Json], cluster: Mapping[str, Json], api: str
) -> str:
    spec: dict[str, Json] = {"interactive": False}
    if block.get("provideClusterInfo") is True:
        spec["cluster"] = _cluster_info(cluster)
    return json.dumps({"apiVersion": api, "kind": "ExecCredential", "spec": spec})


def _cluster_info(cluster: Mapping[str, Json]) -> dict[str, Json]:
    """Return the cluster in the format of ``ExecCredential``."""
    info = {key: cluster[key] for key in _INFO_KEYS if key in cluster}
    authority = cluster.get("certificate-authority")
    if authority and "certificate-authority-data" not in info:
        data = base64.b64encode(Path(str(authority)).read_bytes())
        info["certificate-authority-data"] = data.decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == f"{_API}exec":
            info["config"] = extension.get("extension")
    return info


def _run(command: list[str], env: Mapping[str, str]) -> bytes:
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"no answer in {_TIMEOUT_S} s") from error
    if done.returncode:
        raise _Failed(f"exit code {done.returncode}")
    return done.stdout


def _fields_of(answer: bytes, api: str) -> dict[str, str]:
    try:
        credential = json.loads(answer)
        status = credential["status"]
        is_known = (
            credential["kind"] == "ExecCredential" and credential["apiVersion"] == api
        )
        token = str(status.get("token") or "")
        fields = {
            name: base64.b64encode(str(status[key]).encode()).decode()
            for key, name in _DATA.items()
            if status.get(key)
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Failed("the answer is not an ExecCredential") from None
    if not is_known or not (token or fields):
        raise _Failed(f"no credentials for {api} in the answer")
    return fields | ({"token": token} if token else {})


def _invalid(file: Path, reason: str) -> SettingInvalid:
    return SettingInvalid("kube.plugin", f"{file}: credential plugin: {reason}")
