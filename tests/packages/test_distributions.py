"""The wheel and the source distribution are complete and sufficient to run."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kyverno_mp import __version__
from tests.packages.conftest import ROOT
from tests.waiting import HANG_S, wait_for

PACKAGES_MAX = 40
INSTALLED_BYTES_MAX = 166 * 10**6
"""Without compiled modules, which are half as much again."""
# Building and installing fetch from the package index.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False, env=_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    """Return the environment without variables that make this checkout importable."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KYVERNO_MP", "PYTHON", "VIRTUAL_ENV"))
    }


def tracked(*folders: str) -> set[str]:
    """Return the files of folders that belong to the project."""
    listed = run("git", "ls-files", "-z", "--", *folders, cwd=ROOT)
    return {name for name in listed.split("\0") if name}


@pytest.fixture(scope="module")
def environment(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel as `pipx` does: only with its requirements."""
    folder = tmp_path_factory.mktemp("environment")
    (wheel,) = release.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder)
    python = str(folder / "bin" / "python")
    # Not compiled: few of the modules are imported here.
    words = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(
        *(sys.executable, "-m", "pip", "--python", python, *words, str(wheel)),
        cwd=folder,
    )
    return folder


def test_source_distribution_is_complete(release: Path) -> None:
    """The package, definitions, samples, manifests, chart, alerts and documents."""
    (file,) = release.glob("kyverno_mp-*.tar.gz")
    with tarfile.open(file) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked("kyverno_mp", "config", "docs", "deploy", "setup.cfg")
    wanted |= {"README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "pyproject.toml"}
    links = {name for name in wanted if (ROOT / name).is_symlink()}
    assert wanted - links - found == set()
    assert len(wanted) > 500
    for name in ("crds-files/kyverno.io_policies.yaml", "monitoring/alerts.yaml"):
        assert f"deploy/chart/{name}" in found, "links are followed"
    assert not any("__pycache__" in name or name.startswith("tests/") for name in found)


def test_wheel_contains_the_package_and_the_samples(release: Path) -> None:
    (file,) = release.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        found = set(archive.namelist())
    assert tracked("kyverno_mp") <= found
    share = f"kyverno_mp-{__version__}.data/data/share/kyverno-mp/samples/"
    samples = {
        name.removeprefix("config/samples/") for name in tracked("config/samples")
    }
    assert {name.removeprefix(share) for name in found if share in name} == samples
    tops = {name.partition("/")[0].partition("-")[0] for name in found}
    assert {top.partition(".")[0] for top in tops} == {"kyverno_mp"}


def test_an_installation_is_small(environment: Path) -> None:
    """A failure means: a dependency, or a new version of it, brings much with it."""
    packages = next((environment / "lib").glob("python3*/site-packages"))
    names = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    names -= {"pip", "setuptools"}
    assert len(names) <= PACKAGES_MAX, sorted(names)
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size <= INSTALLED_BYTES_MAX


def test_installed_program_reports_its_version(environment: Path) -> None:
    program = str(environment / "bin" / "kyverno-mp")
    assert __version__ in run(program, "version", cwd=environment)
    run(program, "crds", "--output", str(environment / "crds"), cwd=environment)
    written = {one.name: one.read_text() for one in (environment / "crds").iterdir()}
    files = (ROOT / "config" / "crds").glob("*.yaml")
    assert written == {one.name: one.read_text() for one in files}
    samples = environment / "share" / "kyverno-mp" / "samples"
    words = ("apply", str(samples / "policies"), "-r", str(samples / "resources"))
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, cwd=environment
    )
    assert "pass: " in done.stdout, done.stderr


UID = "1000810000"
ANY_USER = (
    ("unshare", "--user", f"--map-user={UID}", "--map-group=0"),
    (
        *("setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    ),
)
"""OpenShift: a user without a name, in the group 0. A container may allow no user
namespaces; there, root becomes this user, and keeps its access to the folders."""


def _any_user() -> tuple[str, ...]:
    for user in ANY_USER:
        done = subprocess.run([*user, "id", "-u"], capture_output=True, check=False)
        if done.stdout.strip() == UID.encode():
            return user
    pytest.skip("neither user namespaces nor root are to be had")


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "any"])
def test_the_installed_program_serves(environment: Path, *, is_own: bool) -> None:
    """It runs outside the checkout, with the packaged samples, as any user."""
    user = () if is_own else _any_user()
    policies = environment / "share" / "kyverno-mp" / "samples" / "policies"
    with (environment / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *user,
                *(str(environment / "bin" / "kyverno-mp"), "serve", "--standalone"),
                *("--policies", str(policies), "--port", "0", "--health-port", "0"),
                *(
                    "--runtime-dir",
                    str(environment / f"run{len(user)}"),
                    "--workers",
                    "1",
                ),
            ],
            cwd=environment,
            env=_environment(),
            stdout=log,
            stderr=log,
        )
    try:
        port = _health_port(environment / "log", process)
        link = http.client.HTTPConnection("localhost", port, timeout=HANG_S)
        with contextlib.closing(link):
            link.request("GET", "/policies")
            found = json.loads(link.getresponse().read())["policies"]
        assert len(found) == len(list(policies.iterdir()))
        assert all(policy["ready"] for policy in found)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0


def _health_port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    def port() -> int:
        assert process.poll() is None, log.read_text()
        found = re.search(r"metrics +http://localhost:(\d+)/", log.read_text())
        return int(found[1]) if found else 0

    return wait_for(port)


def test_image_needs_no_samples(tmp_path: Path) -> None:
    """The image's recipe copies only the package, not the wheel's other files."""
    names = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "NOTICE")
    for name in (*names, "kyverno_mp"):
        (tmp_path / name).symlink_to(ROOT / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*pip, "--wheel-dir", str(tmp_path / "out"), str(tmp_path), cwd=tmp_path)
    assert list((tmp_path / "out").glob("*.whl"))
