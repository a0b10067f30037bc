"""The service never imports the official Kubernetes client, nor OpenTelemetry's SDK.

The import of either takes 30 MiB and half a second in every process. Nothing uses the
client; the SDK is imported if the operator turns on traces or the push of metrics.
"""

import subprocess
import sys
from pathlib import Path

import pytest

LOAD_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    room = importlib.import_module(name)
    for module in pkgutil.walk_packages(room.__path__, f"{name}."):
        importlib.import_module(module.name)
print(sum(name.startswith("kyverno_mp.") for name in sys.modules))
print(*[name for name in (
    "kubernetes", "requests", "jmespath", "opentelemetry", "grpc", "google.protobuf"
) if name in sys.modules])
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


def test_commands_load_it_only_for_an_oidc_login(tmp_path: Path) -> None:
    """This also proves that the test above can detect an import."""
    code = (
        "import sys, kyverno_mp.cli.apply.from_cluster, kyverno_mp.cli.migrate;"
        "from kyverno_mp.cli.cluster.access import find_access;"
        "find_access(sys.argv[1], 'plain', {});"
        "print('kubernetes' in sys.modules);"
        "find_access(sys.argv[1], 'login', {});"
        "print('kubernetes' in sys.modules)"
    )
    config = """
        clusters: [{name: c, cluster: {server: 'https://x'}}]
        contexts:
        - {name: plain, context: {cluster: c, user: p}}
        - {name: login, context: {cluster: c, user: l}}
        users:
        - {name: p, user: {token: t}}
        - name: l
          user: {auth-provider: {name: oidc, config: {id-token: e30.e30.e30}}}
    """
    (tmp_path / "k").write_text(config)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "k"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\nTrue\n"
