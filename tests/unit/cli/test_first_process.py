"""Process 1 of a container ends by SIGTERM while the program is still starting."""

import signal
import subprocess
import sys

import psutil

from tests.waiting import HANG_S

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
TOLD = "import os; os.getpid = lambda: 1"
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


def test_sigterm_during_the_start() -> None:
    """Linux drops it if the first process has no handler: the kubelet would wait.

    Where nobody may create a namespace, the program is told that it is process 1: then
    only its exit code shows that the handler ended it.
    """
    is_first = _has_namespaces()
    command = [sys.executable, "-c", PROGRAM if is_first else f"{TOLD}\n{PROGRAM}"]
    with subprocess.Popen(
        [*NAMESPACE, *command] if is_first else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            assert popen.stdout is not None
            assert popen.stdout.readline() == "starts\n"
            process = psutil.Process(popen.pid)
            first = process.children()[0] if is_first else process
            first.send_signal(signal.SIGTERM)
            assert popen.wait(HANG_S) == 128 + signal.SIGTERM
        finally:
            popen.kill()
