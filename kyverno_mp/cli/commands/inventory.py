"""Declare ``inventory``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: inventory.py.
Source: docs/upgrade.md (before a move).
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> None:
    # Imported late: help pages need neither the client nor the engine.
    from kyverno_mp.cli.inventory import called

    called(**flags)


command = Command(
    "inventory",
    (
        Example("List the policies of a repository", "inventory policies/"),
        Example("Those of a cluster, for a ticket", "inventory --cluster -o markdown"),
    ),
    callback=_run,
    params=[
        click.Argument(["paths"], nargs=-1),
        click.Option(["--cluster"], is_flag=True, help="List stored objects."),
        click.Option(
            ["--quick"],
            is_flag=True,
            help="Do not try to rewrite the policies, which takes up to a second each.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json", "markdown"]),
            default="table",
            help="Format.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
    ],
    help="Lists every policy and exception of kyverno.io, also for clean-up, which"
    " Kyverno plans to stop executing: the version in which it was written, what it"
    " uses, and whether 'fix policy --to' can rewrite it.",
)
