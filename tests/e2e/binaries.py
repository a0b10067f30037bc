"""Find or compile the programs of a control plane.

Takes: the environment. Gives: paths of kube-apiserver, kube-controller-manager, etcd
and kubectl. In this order: the folder that KUBEBUILDER_ASSETS names, then our own
cache, then the Go compiler, whose results go into that cache (keyed by the sources and
sums in controlplane/, so a changed pin is built again). ``python -m
tests.e2e.binaries`` prints the paths; it needs nothing beyond the standard library, so
that a first run can compile while other tests go on.
May touch: the cache folder, the Go tool chain and its module proxy.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "controlplane"
KUBERNETES_VERSION: Final = "v1.34.2"
MODULES: Final = {
    "etcd": ("etcd", "."),
    "kube-apiserver": ("kubernetes", "./kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "./kube-controller-manager"),
    "kubectl": ("kubernetes", "./kubectl"),
}
"""Program -> folder of its module, package in it."""


@dataclass(frozen=True)
class Binaries:
    """Where the programs are."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kubectl: Path


def find_binaries() -> Binaries:
    """Return all programs; the first call compiles for about ten minutes."""
    return Binaries(
        etcd=_find("etcd"),
        kube_apiserver=_find("kube-apiserver"),
        kube_controller_manager=_find("kube-controller-manager"),
        kubectl=find_kubectl(),
    )


def find_kubectl() -> Path:
    """Return the machine's kubectl, or else a compiled one."""
    found = shutil.which("kubectl")
    return Path(found) if found else _find("kubectl")


def _find(program: str) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / program).exists():
        return Path(assets) / program
    module, package = MODULES[program]
    built = _module_folder(module) / program
    if not built.exists():
        with locked(built.parent):
            if not built.exists():
                _compile(SOURCES / module, package, built)
    return built


def cache_folder() -> Path:
    """Return the folder for what tests make once and keep for later runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kyverno-mp" / "e2e"


def _module_folder(module: str) -> Path:
    key = hashlib.sha256()
    for path in sorted((SOURCES / module).rglob("*")):
        if path.is_file():
            key.update(path.read_bytes())
    return cache_folder() / f"{module}-{key.hexdigest()[:16]}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that of several processes only one compiles."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(module: Path, package: str, target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError(
            f"{target.name}: no Go compiler to build it with; set KUBEBUILDER_ASSETS"
        )
    unfinished = target.with_suffix(".unfinished")
    version = "k8s.io/component-base/version.gitVersion"
    flags = f"-s -w -X {version}={KUBERNETES_VERSION}"
    # Tests use the same cores. They get most of their time, and this gets the rest.
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    subprocess.run(
        [*nice, go, "build", "-ldflags", flags, "-o", str(unfinished), package],
        cwd=module,
        env={
            **os.environ,
            "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
            "CGO_ENABLED": "0",
        },
        check=True,
    )
    unfinished.rename(target)


if __name__ == "__main__":
    found = find_binaries()
    paths = (found.etcd, found.kube_apiserver, found.kube_controller_manager)
    sys.stdout.writelines(f"{path}\n" for path in (*paths, found.kubectl))
