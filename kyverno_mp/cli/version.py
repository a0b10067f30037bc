"""``version``: print the version of the program.

Room: cli. Source: docs/behaviour/cli 19.
"""

import click

from kyverno_mp import __version__
from kyverno_mp.cli.commands.declare import Command, Example


def _run() -> None:
    """Print version, build time and commit; ``---`` if the build has no value."""
    click.echo(f"Version: {__version__}\nTime: ---\nGit commit ID: ---")


command = Command(
    "version",
    (Example("Print the version", "version"),),
    callback=_run,
    help="Prints the version of kyverno-mp.",
)
