"""``completion``: write the completion script of a shell.

Room: cli. Takes: the shell's name. Gives: a script on standard output.
May touch: standard output. Source: docs/behaviour/cli 19.
"""

import click
from click.shell_completion import get_completion_class

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.shell.errors import CommandFailed

_SHELLS = ("bash", "zsh", "fish", "powershell")


@click.command(
    "completion",
    cls=Command,
    examples=(Example("Load it in the current shell", 'eval "$({} completion bash)"'),),
    help="Writes a completion script for bash, zsh, fish or powershell.",
)
@click.argument("shells", nargs=-1)
def command(shells: tuple[str, ...]) -> None:
    """Write the completion script of one shell."""
    if len(shells) != 1:
        raise CommandFailed(f"accepts 1 arg(s), received {len(shells)}")
    shell = shells[0]
    completion = get_completion_class(shell) if shell in _SHELLS else None
    if completion is None:
        names = ", ".join(_SHELLS)
        message = (
            f'invalid argument "{shell}" for "kyverno-mp completion"; one of: {names}'
        )
        raise CommandFailed(message)
    # Imported late: main imports this module.
    from kyverno_mp.cli.main import cli

    click.echo(completion(cli, {}, "kyverno-mp", "_KYVERNO_MP_COMPLETE").source())
