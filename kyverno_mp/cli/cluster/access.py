"""Find the cluster to use: from flags, KUBECONFIG, ~/.kube/config or the pod.

Room: cli. Takes: the flags --kubeconfig and --context. Gives: a Cluster: clients of the
API server, one for each process. Next: migrate, cli/sources/resources, live_data.
May touch: the environment, kubeconfig files and the programs they name; connections
are opened by the first call.
Source: client-go tools/clientcmd (loading rules); docs/behaviour/cli 2, 19.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.cli.cluster.kubeconfig import load_access
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.kube.access import Access, in_cluster
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.settings.read import environment

USER_AGENT: Final = f"kyverno-mp/{__version__}"
_DEFAULT: Final = Path(".kube") / "config"


def find_access(kubeconfig: str, context: str, env: Mapping[str, str]) -> Access:
    """Return the address and credentials of the API server; raises SettingInvalid.

    Several files in KUBECONFIG are merged; missing files are treated as empty.
    """
    files = [Path(kubeconfig)] if kubeconfig else _files_of(env)
    if files:
        return load_access(files, context, env)
    if context or "KUBERNETES_SERVICE_HOST" not in env:
        missing = env.get("KUBECONFIG", "")
        reason = f" KUBECONFIG={missing} does not exist;" if missing else ""
        raise SettingInvalid(
            "kube.kubeconfig",
            f"no kubeconfig:{reason} give --kubeconfig or KUBECONFIG, or run in a pod",
        )
    return in_cluster(env)


def _files_of(env: Mapping[str, str]) -> list[Path]:
    named = [Path(part) for part in env.get("KUBECONFIG", "").split(":") if part]
    home = env.get("HOME", "")
    files = named or ([Path(home) / _DEFAULT] if home else [])
    return [file for file in files if file.exists()]


class Cluster:
    """One cluster. Forked processes open their own connections."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Client | None = None
        self._process = 0

    @property
    def client(self) -> Client:
        """The client of this process; created again after a fork."""
        if self._client is None or self._process != os.getpid():
            self._client = Client(Pool(self._access), USER_AGENT)
            self._process = os.getpid()
        return self._client

    def close(self) -> None:
        """Close the connections of this process."""
        if self._client is not None and self._process == os.getpid():
            self._client.close()


@contextmanager
def open_cluster(kubeconfig: str, context: str) -> Iterator[Cluster]:
    """Return the cluster that the flags and the environment select.

    Raises: SettingInvalid.
    """
    cluster = Cluster(find_access(kubeconfig, context, environment()))
    try:
        yield cluster
    finally:
        cluster.close()
