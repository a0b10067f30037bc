"""Declare ``snapshot inspect``.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: snapshot.py. May touch: file names.
"""

from pathlib import Path
from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group


def _inspect(**flags: Any) -> None:
    # Imported late: help pages do not attach snapshots.
    from kyverno_mp.cli.snapshot import inspect

    inspect(**flags)


_INSPECT = Example(
    "List the policies that workers serve",
    "snapshot inspect /run/kyverno-mp/snapshot/policies.segment",
)

command = Group(
    "snapshot",
    (_INSPECT,),
    help="Shows the content of snapshot files.",
    commands=[
        Command(
            "snapshot inspect",
            (_INSPECT,),
            callback=_inspect,
            params=[
                click.Argument(
                    ["path"],
                    type=click.Path(exists=True, dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["-o", "--output"],
                    type=click.Choice(["table", "json"]),
                    default="table",
                    help="Format of the output.",
                ),
            ],
            help="Checks a segment file of the service and lists its content.",
        )
    ],
)
