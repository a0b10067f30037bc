"""Declare ``facts``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/facts.py.
Source: docs/replay.md (facts).
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> None:
    # Imported late: help pages need neither the client nor the engine.
    from kyverno_mp.cli.facts import called

    called(**flags)


command = Command(
    "facts",
    (
        Example("Export what the cluster's policies read", "facts -o facts.yaml"),
        Example("Export what changed policies read", "facts new/ -o facts.yaml"),
    ),
    callback=_run,
    params=[
        click.Argument(["policies"], nargs=-1, metavar="[POLICY]..."),
        click.Option(
            ["--output", "-o"],
            default="",
            help="File to write, which only its owner can read. Default: standard"
            " output.",
        ),
        click.Option(
            ["--exception-namespace"],
            default="",
            help="Namespace whose PolicyExceptions apply, as set in the service; * for"
            " all namespaces. Without it, none is exported.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
    ],
    help="Exports the data of a cluster that policies read, for 'replay --facts' and"
    " 'serve --standalone --resources': Namespaces, the ConfigMaps that the policies"
    " name, the data of GlobalContextEntries, and PolicyExceptions; never a Secret."
    "\n\nPOLICY is a file or a folder. Default: the policies of the cluster.",
)
