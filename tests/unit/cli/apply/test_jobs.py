"""Workers return the results of a single process; a lost worker is reported."""

import os
import signal

import pytest

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.jobs import run_steps


def _advance(_number: int) -> None:
    """Stand in for a progress bar."""


@pytest.mark.parametrize("jobs", [1, 2, 3, 50])
def test_order(jobs: int) -> None:
    found = list(run_steps(20, lambda n: str(n).encode() * n, jobs, _advance))
    assert found == [str(n).encode() * n for n in range(20)]


def test_output_larger_than_a_pipe() -> None:
    found = list(run_steps(4, lambda n: bytes([n]) * 300_000, 2, _advance))
    assert [len(data) for data in found] == [300_000] * 4
    assert [data[0] for data in found] == [0, 1, 2, 3]


def test_every_step_is_counted() -> None:
    counted: list[int] = []
    list(run_steps(9, lambda _: b"x", 3, counted.append))
    assert sum(counted) == 9


def test_crash_is_an_error() -> None:
    def step(number: int) -> bytes:
        if number == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"x"

    with pytest.raises(CommandFailed, match="ended by signal 9") as caught:
        list(run_steps(8, step, 2, _advance))
    assert caught.value.exit_code == 70


def test_failed_step_keeps_its_message() -> None:
    def step(number: int) -> bytes:
        raise CommandFailed(f"no {number}")

    with pytest.raises(CommandFailed, match="no ") as caught:
        list(run_steps(4, step, 2, _advance))
    assert caught.value.exit_code == 1


def test_defect_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def step(number: int) -> bytes:
        return bytes([1 // (number - number)])

    with pytest.raises(CommandFailed, match="a worker process failed") as caught:
        list(run_steps(4, step, 2, _advance))
    assert caught.value.exit_code == 70
    assert "ZeroDivisionError" in capfd.readouterr().err
