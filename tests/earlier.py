"""The tree of an earlier version, to upgrade from and to go back to.

Takes: the repository's history, or KYVERNO_MP_TEST_EARLIER, a folder with the earlier
tree. Gives: that folder. Next: tests/faults/test_versions.py.
May touch: git, a temporary folder.

The earlier version runs with today's libraries, as both are in one environment here.
"""

import compileall
import functools
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COMMIT: Final = "c8527253b723be2e8a2937635d2f105689ccb809"
"""Until the first release has a tag."""


def has_earlier_tree() -> bool:
    """Return whether ``earlier_tree`` can find the earlier version."""
    return "KYVERNO_MP_TEST_EARLIER" in os.environ or _is_known()


@functools.cache
def earlier_tree() -> Path:
    """Return the folder of the earlier version, extracted once per process."""
    named = os.environ.get("KYVERNO_MP_TEST_EARLIER")
    if named:
        return Path(named)
    assert _is_known()
    archive = _git("archive", COMMIT, "kyverno_mp", "deploy")
    assert archive.returncode == 0, archive.stderr.decode()
    folder = Path(tempfile.mkdtemp(prefix="earlier-"))
    with tempfile.TemporaryFile() as file:
        file.write(archive.stdout)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            tar.extractall(folder, filter="data")
    # Otherwise every start compiles it, where the environment forbids byte code.
    compileall.compile_dir(folder / "kyverno_mp", quiet=2)
    return folder


@functools.cache
def _is_known() -> bool:
    """Return whether git has the commit; fetch it in a clone of the newest one only."""
    commit = ("cat-file", "-e", f"{COMMIT}^{{commit}}")
    if _git(*commit).returncode:
        _git("fetch", "--quiet", "--depth=1", "origin", COMMIT)
    return _git(*commit).returncode == 0


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False)
