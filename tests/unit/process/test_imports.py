"""The service never loads the official client of Kubernetes.

It takes 30 MiB and half a second, in every process, and nothing of it is needed there.
"""

import subprocess
import sys

import pytest

LOAD_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    room = importlib.import_module(name)
    for module in pkgutil.walk_packages(room.__path__, f"{name}."):
        importlib.import_module(module.name)
print(sum(name.startswith("kyverno_mp.") for name in sys.modules))
print(*[name for name in ("kubernetes", "requests", "jmespath") if name in sys.modules])
"""


def loaded(*rooms: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, *rooms],
        capture_output=True,
        text=True,
        check=True,
    )
    count, names = done.stdout.split("\n")[:2]
    return int(count), names


@pytest.mark.parametrize("room", ["process", "webhook", "leader", "controllers"])
def test_no_process_of_the_service_loads_the_official_client(room: str) -> None:
    count, names = loaded(f"kyverno_mp.{room}")
    assert count > 10
    assert names == ""


def test_commands_load_it_only_when_they_ask_a_cluster() -> None:
    """And the tests would notice: all that the command line has loads it nowhere."""
    code = (
        "import sys, kyverno_mp.cli.apply, kyverno_mp.cli.migrate,"
        " kyverno_mp.cli.apply_cluster, kyverno_mp.cli.kubeconfig;"
        "print('kubernetes' in sys.modules);"
        "from kyverno_mp.cli.cluster_access import find_access;"
        "find_access(sys.argv[1], '', {});"
        "print('kubernetes' in sys.modules)"
    )
    config = (
        "{current-context: a, contexts: [{name: a, context: {cluster: c}}],"
        " clusters: [{name: c, cluster: {server: 'https://x'}}]}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "/dev/stdin"],
        input=config,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\nTrue\n"
