"""Process 1 of a container ends by SIGTERM while the program is still starting."""

import signal
import subprocess
import sys

import psutil
import pytest

from tests.waiting import HANG_S

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
PROGRAM = """
import importlib.abc, sys

class Held(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "kyverno_mp.cli.main":
            print("starts", flush=True)
            sys.stdin.read()

sys.meta_path.insert(0, Held())
sys.argv[:] = ["kyverno-mp", "serve"]
from kyverno_mp.__main__ import main
main()
"""


def _has_namespaces() -> bool:
    try:
        done = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not _has_namespaces(), reason="no namespaces of processes here")
def test_sigterm_during_the_start() -> None:
    """Linux drops it if the first process has no handler: the kubelet would wait."""
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            assert popen.stdout is not None
            assert popen.stdout.readline() == "starts\n"
            psutil.Process(popen.pid).children()[0].send_signal(signal.SIGTERM)
            assert popen.wait(HANG_S) == 128 + signal.SIGTERM
        finally:
            popen.kill()
