"""Find the programs that read our packages: helm, kubectl, promtool, Prometheus.

Takes: the PATH, our cache, the Go compiler for helm. Gives: paths. ``python -m
tests.packages.tools`` compiles helm once; it needs nothing beyond the standard library.
A test that lacks a program is skipped, and `.ci/run` fails when a test is skipped.
May touch: the cache folder, the Go module proxy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.e2e.binaries import locked

_HELM: Final = "v3.22.0"


class Missing(Exception):
    """A program is not installed."""


def find_helm() -> str:
    """Return helm: the machine's, or one that Go compiles. Raises: Missing."""
    found = shutil.which("helm")
    if found:
        return found
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "kyverno-mp" / "packages" / f"helm-{_HELM}"
    built = folder / "helm"
    if not built.exists():
        with locked(folder):
            if not built.exists():
                _compile(folder)
    return str(built)


def find(program: str) -> str:
    """Return a program of the machine. Raises: Missing."""
    found = shutil.which(program)
    if found is None:
        raise Missing(f"{program} is not installed")
    return found


def _compile(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Missing("helm is not installed, and there is no Go compiler to build it")
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    unfinished = folder.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [*nice, go, "install", "-trimpath", f"helm.sh/helm/v3/cmd/helm@{_HELM}"],
        env={**os.environ, "GOBIN": str(unfinished), "CGO_ENABLED": "0"},
        check=True,
    )
    (unfinished / "helm").replace(folder / "helm")
    unfinished.rmdir()


if __name__ == "__main__":
    sys.stdout.write(find_helm() + "\n")
