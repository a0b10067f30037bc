"""Run the program that a kubeconfig names to get credentials, as kubectl does.

Room: cli. Takes: the ``exec`` block of a user. Gives: fields of a user: token, client
certificate. Next: cluster_access. May touch: that program, which the user's own
kubeconfig names; the environment. The service runs no such program.
Source: Kubernetes, "client-go credential plugins" (client.authentication.k8s.io).

It is asked once a run: a token that ends before the run does is not renewed.
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
_TIMEOUT_S: Final = 60
"""Programs that refresh a login ask servers; nobody types here."""
_DATA: Final = {
    "clientCertificateData": "client-certificate-data",
    "clientKeyData": "client-key-data",
}


def credentials_of(
    block: Mapping[str, Json], folder: Path, env: Mapping[str, str]
) -> dict[str, str]:
    """Run the program; ``folder``: that of the kubeconfig.

    Raises: SettingInvalid (``kube.plugin``).
    """
    api = str(block.get("apiVersion") or "")
    program = str(block.get("command") or "")
    if not api.startswith(_API) or not program:
        raise _invalid("exec needs command and apiVersion")
    if block.get("interactiveMode") == "Always":
        raise _invalid(f"{program} wants to ask somebody (interactiveMode)")
    if "/" in program:
        # K8S: a path is relative to the kubeconfig, a name is looked up in PATH.
        program = str(folder / program)
    given = {str(one["name"]): str(one["value"]) for one in block.get("env") or ()}
    asked = {
        "apiVersion": api,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    command = [program, *(str(part) for part in block.get("args") or ())]
    try:
        done = subprocess.run(
            command,
            env={**env, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        hint = str(block.get("installHint") or error.strerror)
        raise _invalid(f"{program}: {hint}") from error
    except subprocess.TimeoutExpired as error:
        raise _invalid(f"{program}: no answer in {_TIMEOUT_S} s") from error
    if done.returncode:
        raise _invalid(f"{program}: exit code {done.returncode}")
    return _fields_of(done.stdout, api, program)


def _fields_of(answer: bytes, api: str, program: str) -> dict[str, str]:
    try:
        said = json.loads(answer)
        status = said["status"]
        known = said["kind"] == "ExecCredential" and said["apiVersion"] == api
        token = str(status.get("token") or "")
        found = {
            name: base64.b64encode(str(status[key]).encode()).decode()
            for key, name in _DATA.items()
            if status.get(key)
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _invalid(f"{program}: the answer is no ExecCredential") from error
    if not known or not (token or found):
        raise _invalid(f"{program}: no credentials for {api} in the answer")
    return found | ({"token": token} if token else {})


def _invalid(text: str) -> SettingInvalid:
    return SettingInvalid("kube.plugin", f"credential plugin: {text}")
