"""Run many tests, possibly in worker processes, and report them in order.

Room: cli. Takes: test files and a function that runs one. Gives: a TestRun for each,
after its printed lines. Next: command. May touch: worker processes of
cli/shell/jobs.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.jobs import Advance, run_steps
from kyverno_mp.cli.testing.compare import TestRun
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.errors import Error

_TESTS_PER_JOB: Final = 32
"""Tests that one core runs in about 0.1 s. For fewer, a fork costs more than it
saves."""

Echo = Callable[[str], None]
RunOne = Callable[[TestFile, Echo], TestRun]


class _Outcome(msgspec.Struct, array_like=True):
    lines: list[str]
    run: TestRun


def jobs_for(requested: int, tests: int) -> int:
    """Return the number of workers; 0 means as many as are useful."""
    worth = tests // _TESTS_PER_JOB
    if requested or worth <= 1:
        return requested or 1
    from kyverno_mp.settings.machine import cores  # a short run does without it

    return min(cores(), worth)


def run_all(
    tests: Sequence[TestFile], run: RunOne, echo: Echo, jobs: int, advance: Advance
) -> Iterator[TestRun]:
    """Run the tests; yield all runs before a failure, as a single process would.

    Raises: the errors of ``run``; CommandFailed if a worker ends early.
    """
    if jobs == 1:
        for test in tests:
            yield run(test, echo)
            advance(1)
        return

    def step(number: int) -> bytes:
        lines: list[str] = []
        try:
            outcome = run(tests[number], lines.append)
        except (CommandFailed, Error, OSError, UnicodeDecodeError):
            # The parent runs it again, so that the error follows all earlier output.
            return b""
        return msgspec.msgpack.encode(_Outcome(lines, outcome))

    sent = run_steps(len(tests), step, jobs, advance)
    for test, data in zip(tests, sent, strict=True):
        if not data:
            yield run(test, echo)
            continue
        outcome = msgspec.msgpack.decode(data, type=_Outcome)
        for line in outcome.lines:
            echo(line)
        yield outcome.run
