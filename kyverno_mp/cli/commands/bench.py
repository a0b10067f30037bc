"""Declare ``bench``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: bench.py.
"""

from typing import Any, Final

import click

from kyverno_mp.cli.commands.declare import Command, Example

_SECONDS_MAX: Final = 600.0


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    from kyverno_mp.cli.bench import called

    return called(**flags)


command = Command(
    "bench",
    (
        Example("Find the slowest rules", "bench policies/ -r manifests/"),
        Example(
            "Compare two versions of a policy set in a script",
            "bench policies/ -r manifests/ -o json --seconds 10",
        ),
        Example("Find the slowest rules of a cluster", "bench --cluster"),
        Example("Try policies on the objects of a cluster", "bench policies/ -c"),
    ),
    callback=_run,
    params=[
        click.Argument(["policies"], nargs=-1),
        click.Option(
            ["-r", "--resource", "resources"],
            multiple=True,
            help="Files with objects, or folders.",
        ),
        click.Option(
            ["-c", "--cluster"],
            is_flag=True,
            help="Read policies from the cluster unless POLICIES are given, and objects"
            " unless -r is given.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
        click.Option(
            ["--namespace"],
            default="",
            help="With --cluster: only objects in this namespace.",
        ),
        click.Option(["-f", "--values-file"], default="", help="File with Values."),
        click.Option(
            ["--seconds"],
            type=click.FloatRange(0.01, _SECONDS_MAX),
            default=2.0,
            help="How long to measure.",
        ),
        click.Option(
            ["-n", "--top"],
            type=click.IntRange(0),
            default=20,
            help="Rules to print, the slowest first; 0: all.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            help="Format of the output.",
        ),
    ],
    help="Measures how long policies take for each object, with the engine of the"
    " server.\n\nThe first figures are for all policies together. The table shows each"
    " rule when it runs alone. Reading the request and writing the answer are"
    " not included; with --cluster, the calls of rules to the API server are. If the"
    " cluster has more than 1,000 objects, an even sample of 1,000 is measured.",
)
