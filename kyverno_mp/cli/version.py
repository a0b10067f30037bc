"""``version``: print the version of the program.

Room: cli. Source: docs/behaviour/cli 19.
"""

import click

from kyverno_mp import __version__


@click.command("version", help="Prints the version of kyverno-mp.")
def command() -> None:
    """Print version, build time and commit; ``---`` where the build did not say."""
    click.echo(f"Version: {__version__}\nTime: ---\nGit commit ID: ---")
