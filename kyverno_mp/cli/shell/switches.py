"""Accept values of switches, such as ``--table=false``, like upstream.

Room: cli. Takes: argv, the tree of commands. Gives: argv that click can parse. Next:
main.
Source: docs/behaviour/cli 1 (cobra's flags).
"""

from collections.abc import Sequence
from typing import Final

import click

from kyverno_mp.cli.shell.errors import CommandFailed

_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def with_plain_switches(root: click.Command, arguments: Sequence[str]) -> list[str]:
    """Turn ``--switch=true`` into ``--switch`` and remove ``--switch=false``.

    Raises: CommandFailed for other values.
    """
    if not any(argument.startswith("-") and "=" in argument for argument in arguments):
        return list(arguments)
    command = _named(root, arguments)
    remaining: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*remaining, argument, *rest]
        name, equals, value = argument.partition("=")
        switch = _switch(command, name) if equals and name.startswith("-") else None
        if switch is None:
            remaining.append(argument)
        elif value not in _BOOLS:
            names = ", ".join(sorted(switch.opts, key=len))
            raise CommandFailed(
                f'invalid argument "{value}" for "{names}" flag: strconv.ParseBool:'
                f' parsing "{value}": invalid syntax'
            )
        elif _BOOLS[value]:
            remaining.append(name)
    return remaining


def _named(command: click.Command, arguments: Sequence[str]) -> click.Command:
    """Return the innermost command in the arguments."""
    for argument in arguments:
        if not isinstance(command, click.Group):
            break
        subcommand = command.get_command(click.Context(command), argument)
        command = subcommand or command
    return command


def _switch(command: click.Command, name: str) -> click.Option | None:
    for option in command.params:
        if isinstance(option, click.Option) and option.is_flag and name in option.opts:
            return option
    return None
