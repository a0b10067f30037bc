"""A long run shows its progress on a terminal, but prints nothing of it to a pipe.

A failure means: control characters appear in a log, or a long run looks dead.
"""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kyverno_mp.cli.output.progress import Line, progress

SAMPLES = Path(__file__).resolve().parents[4] / "config" / "samples"
BENCH = (
    "-m", "kyverno_mp", "bench", str(SAMPLES / "policies"),
    "-r", str(SAMPLES / "resources" / "pods.yaml"), "--seconds", "6",
)  # fmt: skip


class Time:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("steps", "done", "seconds", "text"),
    [
        (20_000, 5_000, 2.0, "Evaluating: 5,000 of 20,000 objects, 2,500/s, 6 s left"),
        (1_000, 10, 1.0, "Evaluating: 10 of 1,000 objects, 10/s, 1 min 39 s left"),
        (4, 4, 4.0, "Evaluating: 4 of 4 objects, 1/s, 0 s left"),
        (0, 300, 3.0, "Evaluating: 300 objects, 100/s"),
        (5, 0, 2.0, "Evaluating: 0 of 5 objects, 0/s"),
    ],
)
def test_text(steps: int, done: int, seconds: float, text: str) -> None:
    stream, clock = io.StringIO(), Time()
    line = Line(stream, "Evaluating", steps, "objects", clock)
    clock.now_s += seconds
    line(done)
    assert stream.getvalue() == f"\r{text}\x1b[K"
    line.hide()
    line.hide()
    assert stream.getvalue() == f"\r{text}\x1b[K\r\x1b[K"


def test_short_run_shows_no_progress() -> None:
    stream, clock = io.StringIO(), Time()
    line = Line(stream, "Reading", 3, "files", clock)
    for _ in range(3):
        clock.now_s += 0.3
        line(1)
    line.hide()
    assert stream.getvalue() == ""


def test_progress_is_drawn_at_most_ten_times_a_second() -> None:
    stream, clock = io.StringIO(), Time()
    line = Line(stream, "Reading", 0, "files", clock)
    clock.now_s += 2
    for _ in range(1000):
        clock.now_s += 0.001
        line(1)
    assert 9 <= stream.getvalue().count("\r") <= 11


def test_no_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", 2, "files") as bar:
        bar(1)
        bar.hide()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal() -> None:
    """Standard error is a terminal; standard output is no terminal and stays clean."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *BENCH], stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        out, _ = process.communicate()
    told = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "Measuring: " in told
    assert " of 57 rules, " in told
    assert told.endswith("\r\x1b[K")
    assert b"\x1b" not in out
    assert b"Measuring" not in out


def test_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, *BENCH], capture_output=True, check=True)
    assert done.stderr == b""
    assert b"\r" not in done.stdout
