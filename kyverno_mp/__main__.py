"""Start the command line; ``serve`` is one of its commands.

Room: the package itself. Takes: argv. Gives: an exit code. Next: cli/main.py.
"""

import gc
import sys

_OBJECTS = 50_000
"""PERF: for a faster start of the command line. With the default of 700, garbage
collections that free nothing take a tenth of the time of the imports."""


def main() -> int:
    """Run the command in argv; the entry point of the console scripts."""
    if sys.argv[1:2] != ["serve"]:  # its processes choose their own thresholds
        gc.set_threshold(_OBJECTS, 20, 20)
    from kyverno_mp.cli.main import program_of, run  # keeps our own import cheap

    return run(sys.argv[1:], program_of(sys.argv[0]))


if __name__ == "__main__":
    sys.exit(main())
