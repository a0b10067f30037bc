"""Declare ``migrate``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: migrate.py.
Source: docs/behaviour/cli 19.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> None:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.migrate import called

    called(**flags)


command = Command(
    "migrate",
    (
        Example(
            "Migrate one kind",
            "migrate --resource policyexceptions.kyverno.io",
        ),
    ),
    callback=_run,
    params=[
        click.Option(
            ["--resource", "resources"],
            multiple=True,
            help="Name of a CustomResourceDefinition, or a comma-separated list of"
            " names; can be repeated.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
    ],
    help="Writes custom resources again, so that all are stored in the storage version,"
    " and updates the status of their CustomResourceDefinition.",
)
