"""Start the command line; ``serve`` is one of its commands.

Room: the package itself. Takes: argv. Gives: an exit code. Next: cli/main.py.
"""

import gc
import sys

_OBJECTS = 50_000
"""PERF: start of the command line: with the default of 700, a tenth of the time of the
imports is spent in garbage collections that find nothing."""


def main() -> int:
    """Run the command that argv names; the entry of the console scripts."""
    if sys.argv[1:2] != ["serve"]:  # whose processes choose their own thresholds
        gc.set_threshold(_OBJECTS, 20, 20)
    from kyverno_mp.cli.main import program_of, run  # importing this module is free

    return run(sys.argv[1:], program_of(sys.argv[0]))


if __name__ == "__main__":
    sys.exit(main())
