"""Start the command line; ``serve`` is one of its commands.

Room: the package itself. Takes: argv. Gives: an exit code. Next: cli/main.py.
"""

import atexit
import gc
import os
import signal
import sys

_OBJECTS = 100_000
"""PERF: for a faster start of the command line. ``apply`` of one policy creates 52,000
objects that stay, so a garbage collection before that frees nothing."""


_FIRST_PROCESS = 1
_TERMINATED = 128 + signal.SIGTERM  # as a shell reports it
_FAILED = 1
_EXIT_CODE_MASK = 0xFF  # the bits that the caller receives


def main() -> int:
    """Run the command in argv; the entry point of the console scripts."""
    if os.getpid() == _FIRST_PROCESS:
        # In a container, Linux drops a SIGTERM that has no handler, as during the start
        # of the service, until the supervisor blocks it.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    ended: list[int] = []
    if sys.argv[1:2] != ["serve"]:  # its processes choose their own thresholds
        gc.set_threshold(_OBJECTS, 20, 20)
        atexit.register(_end, ended)
    from kyverno_mp.cli.main import program_of, run  # keeps our own import cheap

    ended.append(run(sys.argv[1:], program_of(sys.argv[0])))
    return ended[0]


def _end(ended: list[int]) -> None:
    """End the process, without freeing its objects, after the command has ended.

    PERF: Python frees every object at exit, which takes up to a fifth of a short run.
    This function was registered first, so all other exit handlers have run.
    """
    if not ended:
        return
    code = ended[0]
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # the caller can close it
                stream.flush()
    except OSError as error:
        if not code and not isinstance(error, BrokenPipeError):
            print(f"Error: {error.strerror}", file=sys.stderr)  # noqa: T201 - the command's output
        code = code or _FAILED
    os._exit(code & _EXIT_CODE_MASK)


if __name__ == "__main__":
    sys.exit(main())
