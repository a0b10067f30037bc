"""Declare ``crds``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: crds.py. May touch: file names.
"""

from pathlib import Path
from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> None:
    # Imported late: help pages do not need the schemas.
    from kyverno_mp.cli.crds import called

    called(**flags)


command = Command(
    "crds",
    (
        Example("Install them", "crds | kubectl apply --server-side -f -"),
        Example("Write one file for each kind", "crds --output crds/"),
    ),
    callback=_run,
    params=[
        click.Option(
            ["--output", "folder"],
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder for the files; by default, they go to standard output.",
        )
    ],
    help="Writes the CustomResourceDefinitions.",
)
