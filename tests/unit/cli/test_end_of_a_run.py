"""A command ends without freeing its objects; nothing that it wrote is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import LATEST_POLICY

MAIN = "from kyverno_mp.__main__ import main\n"
OTHERS = f"""
import atexit, sys, threading, time
sys.argv[:] = ["kyverno-mp", "version"]
{MAIN}
code = main()
atexit.register(print, "an exit handler")
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
sys.exit(code)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )


def test_threads_and_exit_handlers_finish_first() -> None:
    done = run("-c", OTHERS)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["a thread", "an exit handler"]


@pytest.mark.parametrize(
    ("arguments", "code"), [(["crds"], 0), (["apply", "none"], 1), (["verson"], 1)]
)
def test_the_output_is_complete(arguments: list[str], code: int) -> None:
    done = run("-m", "kyverno_mp", *arguments)
    assert done.returncode == code
    if code:
        assert (done.stdout, done.stderr[:7]) == ("", "Error: ")
    else:
        assert done.stdout.endswith("\n")
        assert done.stdout.count("kind: CustomResourceDefinition\n") > 10


def test_the_caller_gets_the_low_bits_of_an_exit_code(
    policy_file: Path, pods_file: Path
) -> None:
    """Python's own functions to exit do not take larger numbers."""
    policy_file.write_text(LATEST_POLICY.replace("Enforce", "Audit"))
    flags = ("-r", str(pods_file), "--audit-warn", "--warn-exit-code", str(2**40 + 3))
    done = run("-m", "kyverno_mp", "apply", str(policy_file), *flags)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("arguments", [["version"], ["help", "apply"], ["crds"]])
def test_a_full_disk_is_an_error(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kyverno_mp", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: No space left on device\n"


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    # Without a buffer, Python itself loses what a pipe does not take at once.
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-m", "kyverno_mp", "crds"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=buffered,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_an_unexpected_error_keeps_its_exit_code() -> None:
    """``main`` did not return, so Python itself ends the process."""
    broken = "import sys; sys.argv[:] = ['kyverno-mp']\n" + MAIN
    broken += "import kyverno_mp.cli.main as m; m.run = None; main()"
    done = run("-c", broken)
    assert done.returncode == 1
    assert "TypeError" in done.stderr
