"""Keep all cores busy, to prove that no test depends on the machine's speed.

Takes: ``python -m tests.load [--cores N] -- COMMAND``. Gives: COMMAND's exit code;
without COMMAND it loads the machine until it is interrupted. Next: CONTRIBUTING.md.
May touch: N processes, which end with this one.
"""

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator


def _burn() -> None:
    """Compute until the parent ends."""
    parent, number = os.getppid(), 1
    while os.getppid() == parent:
        for _ in range(100_000):
            number = number * 6364136223846793005 % (1 << 64)


@contextlib.contextmanager
def loaded(cores: int) -> Iterator[None]:
    """Keep the cores busy until the block ends."""
    context = multiprocessing.get_context("spawn")
    burning = [context.Process(target=_burn, daemon=True) for _ in range(cores)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.join()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    options = parser.parse_args(arguments)
    with loaded(options.cores):
        if options.command:
            return subprocess.run(options.command, check=False).returncode
        with contextlib.suppress(KeyboardInterrupt):
            _burn()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
