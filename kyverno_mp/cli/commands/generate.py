"""Declare ``generate``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: generate.py. May touch: nothing outside its arguments.
Source: docs/background.md (preview).
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> int:
    # Imported late: help pages need no client.
    from kyverno_mp.cli.generate import COMMAND

    return COMMAND.run(**flags)


command = Command(
    "generate",
    (
        Example("Preview a stored policy", "generate --cluster add-quota"),
        Example("Preview a file", "generate --cluster policy.yaml --output json"),
    ),
    callback=_run,
    params=[
        click.Argument(["policies"], nargs=-1, required=True, metavar="POLICY..."),
        click.Option(
            ["--cluster", "-c", "is_cluster"], is_flag=True, help="Use a cluster."
        ),
        click.Option(
            ["--output", "-o"],
            type=click.Choice(["table", "json"]),
            default="table",
            help="Format of the output.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
        click.Option(
            ["--kyverno-namespace"],
            default="kyverno",
            help="Namespace of Kyverno, where the record of the generate rules is.",
        ),
    ],
    help="Shows which objects of a cluster generate rules would create, update and"
    " delete now if each trigger changed, with the differences, and writes nothing."
    " Values of Secrets are hidden. POLICY is a file, - for standard input, or the name"
    " of a stored policy: name or namespace/name.",
)
