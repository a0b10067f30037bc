"""Distribute a run over many objects to worker processes.

Room: cli. Takes: a number of steps and a function that runs one step and returns
bytes. Gives: the bytes of all steps in their order. Next: apply.
May touch: its child processes (fork), pipes between them.
"""

import os
import selectors
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from kyverno_mp.cli.shell.errors import CommandFailed

_DONE: Final = 0
_STEP: Final = 1
_FAILED: Final = 2
_INTERNAL_ERROR: Final = 3
_EXIT_INTERNAL_ERROR: Final = 70
_HEAD_BYTES: Final = 5
"""One byte for the kind of the payload, four bytes for its length."""
_READ_BYTES: Final = 1 << 16

Step = Callable[[int], bytes]
Advance = Callable[[int], None]


def run_steps(steps: int, step: Step, jobs: int, advance: Advance) -> Iterator[bytes]:
    """Run ``step(0)`` to ``step(steps - 1)`` and yield their bytes in this order.

    With more than one job, each job runs its part of the steps in a fork of this
    process, which shares the data loaded so far. Raises: CommandFailed from a step, or
    if a worker ends before its part is done.
    """
    jobs = min(jobs, steps)
    if jobs <= 1:
        for number in range(steps):
            yield step(number)
            advance(1)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    workers = [
        _Worker(range(steps * job // jobs, steps * (job + 1) // jobs), step)
        for job in range(jobs)
    ]
    try:
        _collect(workers, advance)
    finally:
        for worker in workers:
            worker.end()
    for worker in workers:
        yield from worker.found


class _Worker:
    """One forked process and the bytes that it has sent so far."""

    def __init__(self, part: range, step: Step) -> None:
        self.part = part
        self.found: list[bytes] = []
        self.is_done = False
        self._buffer = bytearray()
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn if threads exist; this process starts none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _work(part, step, writer)
        os.close(writer)
        self.reader = reader
        self._ended = False

    def receive(self) -> int:
        """Read the available bytes; return the step count. Raises: CommandFailed."""
        data = os.read(self.reader, _READ_BYTES)
        if not data:
            raise self._lost()
        self._buffer += data
        before = len(self.found)
        while len(self._buffer) >= _HEAD_BYTES:
            kind = self._buffer[0]
            end = _HEAD_BYTES + int.from_bytes(self._buffer[1:_HEAD_BYTES], "big")
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[_HEAD_BYTES:end])
            del self._buffer[:end]
            if kind == _DONE:
                self.is_done = True
            elif kind == _STEP:
                self.found.append(payload)
            else:
                code = 1 if kind == _FAILED else _EXIT_INTERNAL_ERROR
                raise CommandFailed(payload.decode(), code)
        return len(self.found) - before

    def _lost(self) -> CommandFailed:
        _, status = os.waitpid(self.pid, 0)
        self._ended = True
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        number = self.part.start + len(self.found)
        return CommandFailed(
            f"a worker process ended {how} at object {number + 1}; the run has no"
            " results",
            _EXIT_INTERNAL_ERROR,
        )

    def end(self) -> None:
        """Close the pipe and wait for the worker; kill it if it still runs."""
        os.close(self.reader)
        if not self._ended:
            self._ended = True
            if not self.is_done:
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _collect(workers: list[_Worker], advance: Advance) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.reader, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                advance(worker.receive())
                if worker.is_done:
                    selector.unregister(worker.reader)


def _work(part: range, step: Step, writer: int) -> None:
    """Run one part in the forked process; never returns."""
    code = 0
    with os.fdopen(writer, "wb") as pipe:
        try:
            for number in part:
                _send(pipe, _STEP, step(number))
            _send(pipe, _DONE, b"")
            pipe.flush()
        except (BrokenPipeError, KeyboardInterrupt):
            code = 1
        except CommandFailed as error:
            code = _send_error(pipe, _FAILED, error.message)
        except BaseException:  # noqa: BLE001 - outermost frame of a process: reported
            traceback.print_exc()
            code = _send_error(
                pipe, _INTERNAL_ERROR, "a worker process failed, see above"
            )
        finally:
            os._exit(code)


def _send_error(pipe: BinaryIO, kind: int, message: str) -> int:
    try:
        _send(pipe, kind, message.encode())
        pipe.flush()
    except OSError:
        return 1
    return 0


def _send(pipe: BinaryIO, kind: int, payload: bytes) -> None:
    pipe.write(bytes([kind]) + len(payload).to_bytes(4, "big"))
    pipe.write(payload)
