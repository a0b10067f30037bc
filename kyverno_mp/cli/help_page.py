"""``help``: print the help page of a command, like ``--help``.

Room: cli. Takes: the names of a command. Gives: its help. Next: none.
May touch: standard output. Source: docs/behaviour/cli 1 (Cobra's own command).
"""

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.screen import say


@click.command(
    "help",
    cls=Command,
    examples=(Example("Show the page of a command", "help jp query"),),
    help="Shows the help page of a command.",
)
@click.argument("names", nargs=-1)
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> None:
    """Print the help page of the named command."""
    above = context.find_root()
    command: click.Command | None = above.command
    for name in names:
        if not isinstance(command, click.Group):
            # KYVERNO: arguments after a command without sub-commands are ignored.
            break
        command = command.get_command(above, name)
        if command is None:
            # KYVERNO: an unknown topic is reported, but the exit code is 0.
            say(f"Unknown help topic `{' '.join(names)}`", err=True)
            click.echo(context.find_root().get_help(), err=True)
            return
        above = click.Context(command, info_name=name, parent=above)
    click.echo(above.get_help())
