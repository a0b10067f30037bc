"""Answer for the commands that this version leaves out.

Room: cli. Takes: any arguments. Gives: CommandFailed saying what is missing.
May touch: nothing outside its arguments. Source: spec/cli.md 19.
"""

import click

from kyverno_mp.cli.errors import CommandFailed

_REASONS = {
    "migrate": "it needs a cluster",
}


@click.command(
    "absent",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    help="Not in this version.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Fail; the name is the one by which the group called it."""
    del arguments
    name = str(context.info_name)
    reason = _REASONS.get(name, "it is not built yet")
    raise CommandFailed(f"{name}: not in this version: {reason}")
