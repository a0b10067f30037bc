"""Start the service forked from a process that has imported it, as its roles are.

To import the service takes some two seconds of CPU time; a test that needs a service
rarely tests that. `tests/packages` and `tests/e2e` start the program as users do;
`test_shutdown.py` starts an interpreter, and `test_versions.py` one of another version.

Takes: the arguments of ``kyverno-mp``. Gives: its process. Next: service.py. May touch:
processes; the one that forks ends with pytest.
"""

import atexit
import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_FORKING: Final = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["tests.faults.imported"])


class Forked:
    """The part of Popen that tests of a service use."""

    def __init__(
        self, arguments: tuple[str, ...], variables: Mapping[str, str], folder: Path
    ) -> None:
        """Run this version."""
        self._process = _FORKING.Process(
            target=_run, args=(arguments, dict(variables), str(folder))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Raises: TimeoutExpired."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("kyverno-mp", timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


def start(
    arguments: tuple[str, ...],
    variables: Mapping[str, str],
    folder: Path,
    tree: Path | None = None,
) -> "Forked | subprocess.Popen[bytes]":
    """Run ``kyverno-mp``; ``stdout`` and ``stderr`` of the folder get its output.

    A new interpreter runs the version of ``tree``; otherwise it is forked.
    """
    output, log = folder / "stdout", folder / "stderr"
    with output.open("w") as stdout, log.open("w") as stderr:
        if tree is None:
            return Forked(arguments, variables, folder)
        return subprocess.Popen(
            [sys.executable, "-m", "kyverno_mp", *arguments],
            cwd=tree,
            env=dict(variables),
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def without_settings() -> dict[str, str]:
    """Return the environment without settings of kyverno-mp."""
    return {k: v for k, v in os.environ.items() if "KYVERNO_MP" not in k}


@atexit.register
def _end() -> None:
    """End what tests left; wait for the rest, so that its CPU time is counted here."""
    for process in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _run(arguments: tuple[str, ...], variables: Mapping[str, str], folder: str) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(Path(folder, name), os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    main = importlib.import_module("kyverno_mp.__main__")
    sys.argv = [str(main.__file__), *arguments]
    sys.exit(main.main())
