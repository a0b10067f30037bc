"""Start the command line; ``serve`` is one of its commands.

Room: the package itself. Takes: argv. Gives: an exit code. Next: cli/main.py.
"""

import sys


def main() -> int:
    """Run the command that argv names; the console script's entry."""
    from kyverno_mp.cli.main import run  # keeps importing this module free of cost

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
