"""Declare ``explain``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: explain.py.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the compiler.
    from kyverno_mp.cli.explain.command import called

    return called(**flags)


command = Command(
    "explain",
    (
        Example("Show the rules that a cluster will run", "explain policies/"),
        Example(
            "Include exceptions, as JSON",
            "explain policies/ -e exceptions.yaml -o json",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["paths"], nargs=-1, required=True),
        click.Option(
            ["-e", "--exception", "exceptions"],
            multiple=True,
            help="Files with PolicyExceptions.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            help="Format of the output.",
        ),
        click.Option(
            ["--target"],
            type=click.Choice(["server", "cli"]),
            default="server",
            help="Evaluator of the policies. The notes column shows what the server"
            " of this version rejects or skips.",
        ),
    ],
    help="Shows the rules that the compiler computes from policies: kinds, operations,"
    " action, effects, exceptions.",
)
