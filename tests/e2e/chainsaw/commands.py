"""Run the commands of a test: scripts, programs and replacements for kubectl.

Takes: an operation, bindings, a Shell. Gives: stdout, stderr and error as bindings, or
raises Failed if the operation's check fails. May touch: processes, which end with the
operation; the cluster through kubectl. Source: chainsaw
pkg/engine/operations/{script,command}, pkg/engine/kubectl.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.chainsaw.documents import Failed, Operation
from tests.e2e.chainsaw.expressions import Names, fill, problems
from tests.e2e.kubeconfig import read_kubeconfig, write_kubeconfig
from tests.waiting import HANG_S

COLLECTORS: Final = frozenset({"events", "describe", "get", "podLogs"})
"""Operations that only show something and check nothing."""

_PROJECT: Final = Path(__file__).resolve().parents[3]
_VERBS: Final = {"describe": "describe", "podLogs": "logs"}


@dataclass(frozen=True)
class Shell:
    """The folder and the environment of commands."""

    folder: Path
    environment: Mapping[str, str]
    namespace: str


def command_environment(
    kubeconfig: Path, kubectl: Path, folder: Path
) -> dict[str, str]:
    """Return the environment of commands that talk to a cluster.

    ``folder``: where to put programs that the commands expect: kubectl, and our command
    line under the name of Kyverno's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kubectl").symlink_to(kubectl)
    ours = folder / "kyverno"
    ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kyverno_mp "$@"\n')
    ours.chmod(0o755)
    return {
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(_PROJECT),
    }


def run_command(shell: Shell, operation: Operation, names: Names) -> dict[str, Any]:
    """Run ``script`` or ``command``."""
    fields = operation.fields
    if operation.name == "script":
        interpreter = fields.get("shell", "sh")
        command = [interpreter, *fields.get("shellArgs", ["-c"]), fields["content"]]
    else:
        arguments = [_expanded(one, shell, names) for one in fields.get("args", [])]
        command = [fields["entrypoint"], *arguments]
    given = {
        one["name"]: _expanded(one["value"], shell, names)
        for one in fields.get("env", [])
    }
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = _own_kubeconfig(shell.environment["KUBECONFIG"], Path(folder))
        inner = Shell(
            shell.folder / fields.get("workDir", "."),
            {**shell.environment, "KUBECONFIG": kubeconfig, **given},
            shell.namespace,
        )
        return _run(inner, operation, command, names)


def _own_kubeconfig(path: str, folder: Path) -> str:
    """Copy a kubeconfig for one operation, which can edit it.

    As in chainsaw, its cluster, context and user are all called chainsaw.
    """
    access = read_kubeconfig(Path(path))
    copy = folder / "kubeconfig"
    write_kubeconfig(copy, access, "chainsaw", cluster="chainsaw")
    return str(copy)


def wait(shell: Shell, operation: Operation, names: Names) -> None:
    """Wait for a condition as kubectl does."""
    fields = fill(dict(operation.fields), names)
    wanted = fields["for"]
    if "condition" in wanted:
        one = wanted["condition"]
        value = f"={one['value']}" if "value" in one else ""
        what = f"condition={one['name']}{value}"
    elif "jsonPath" in wanted:
        what = f"jsonpath={wanted['jsonPath']['path']}={wanted['jsonPath']['value']}"
    else:
        what = "delete"
    command = [
        *("kubectl", "wait", *_selection(fields, shell, every=True)),
        f"--for={what}",
        f"--timeout={operation.timeout_s:.0f}s",
    ]
    _run(shell, operation, command, names)


def collect(shell: Shell, operation: Operation, names: Names) -> None:
    """Show objects, events or logs on standard output."""
    fields = fill(dict(operation.fields), names)
    if operation.name == "events":
        fields["kind"] = "events"
    verb = _VERBS.get(operation.name, "get")
    command = ["kubectl", verb, *_selection(fields, shell, every=False)]
    print(_run(shell, operation, command, names)["stdout"])


def _run(
    shell: Shell, operation: Operation, command: list[str], names: Names
) -> dict[str, Any]:
    error = None
    stdout = stderr = ""
    try:
        done = subprocess.run(
            command,
            cwd=shell.folder,
            env={**shell.environment, "NAMESPACE": shell.namespace},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # A script of twenty commands may take longer on a busy machine.
            timeout=max(operation.timeout_s, HANG_S),
            check=False,
        )
        stdout, stderr = done.stdout, done.stderr
        if done.returncode:
            error = f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        error = "signal: killed"
    except OSError as failed:
        error = str(failed)
    found = {"stdout": stdout, "stderr": stderr, "error": error}
    wrong = [error] if error else []
    if "check" in operation.fields:
        wrong = problems(operation.fields["check"], None, {**names, **found})
    if wrong:
        raise Failed(f"{operation.place}: {'; '.join(wrong)}\n{stdout}{stderr}")
    return found


def _expanded(text: str, shell: Shell, names: Names) -> str:
    """Return a text with its expression evaluated, or with ``$NAMES`` replaced."""
    filled = str(fill(str(text), names))
    if filled.startswith("$") and filled[1:] in names:
        return str(names[filled[1:]])
    return filled.replace("$NAMESPACE", shell.namespace)


def _selection(fields: Mapping[str, Any], shell: Shell, *, every: bool) -> list[str]:
    kind = fields.get("kind", "")
    group = str(fields.get("apiVersion", "")).rpartition("/")[0]
    chosen = [f"{kind}.{group}" if group else kind] if kind else []
    if "name" in fields:
        chosen.append(fields["name"])
    elif "selector" in fields:
        chosen.append(f"--selector={fields['selector']}")
    elif every:
        chosen.append("--all")
    return [*chosen, f"--namespace={fields.get('namespace', shell.namespace)}"]
