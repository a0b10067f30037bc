"""Fixtures for the programs that read our packages."""

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.binaries import find_kubectl, locked
from tests.packages.tools import Missing, find, find_helm

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY: Final = "An-Owner/kyverno-mp"
"""For which the release is made."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compile missing programs, or wait for who does, before the timeouts run."""
    functions = (item for item in items if isinstance(item, pytest.Function))
    needed = {name for function in functions for name in function.fixturenames}
    with contextlib.suppress(Missing):
        _ = "helm" in needed and find_helm()
    with contextlib.suppress(FileNotFoundError):
        _ = "kubectl" in needed and find_kubectl()


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a program that runs helm without a garbage collection.

    It takes a third of the CPU time of each of hundreds of runs, and saves no memory
    that matters: a run without it needs up to 300 megabytes.
    """
    try:
        path = find_helm()
    except Missing as missing:
        pytest.skip(str(missing))
    program = tmp_path_factory.mktemp("helm") / "helm"
    program.write_text(f'#!/bin/sh\nGOGC=off exec {shlex.quote(path)} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dry run of a release, once for all workers of pytest."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "release"
    with locked(folder):
        if not made.exists():
            unfinished = tmp_path_factory.mktemp("release") / "all"
            words = ("--dry-run", "--repository", REPOSITORY, "--output", unfinished)
            done = subprocess.run(
                [sys.executable, "-m", "deploy.release", *words],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            unfinished.rename(made)
    return made


@pytest.fixture(scope="session")
def kubectl() -> str:
    """Return the path of kubectl, which contains kustomize; Go may compile it."""
    try:
        return str(find_kubectl())
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def promtool() -> str:
    """Return the path of Prometheus' tool for rules."""
    return _found("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    """Return the path of Prometheus."""
    return _found("prometheus")


def _found(program: str) -> str:
    try:
        return find(program)
    except Missing as missing:
        pytest.skip(str(missing))
