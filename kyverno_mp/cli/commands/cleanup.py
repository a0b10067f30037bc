"""Declare ``cleanup``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cleanup.py. May touch: nothing outside its arguments.
Source: docs/cleanup.md (preview).
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> int:
    # Imported late: help pages need no client.
    from kyverno_mp.cli.cleanup import COMMAND

    return COMMAND.run(**flags)


command = Command(
    "cleanup",
    (
        Example("Preview a stored policy", "cleanup --cluster old-pods"),
        Example("Preview a file", "cleanup --cluster policy.yaml --output json"),
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
            help="Namespace of Kyverno's ConfigMap, which has the resourceFilters.",
        ),
    ],
    help="Shows which objects of a cluster clean-up policies would delete now, and"
    " deletes nothing. POLICY is a file, - for standard input, or the name of a stored"
    " policy: name or namespace/name.",
)
