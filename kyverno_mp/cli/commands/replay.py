"""Declare ``replay``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/replay/command.py.
Source: docs/replay.md.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    from kyverno_mp.cli.replay.command import called

    return called(**flags)


command = Command(
    "replay",
    (
        Example(
            "Compare changed policies with the current policies",
            "replay recording/ new/ --against old/",
        ),
        Example(
            "Compare policies with the recorded answers",
            "replay recording/ policies/",
        ),
        Example(
            "Fail a pipeline only if a request would now be denied",
            "replay recording/ new/ --against old/ --fail-on denied",
        ),
        Example(
            "Write a comment for a pull request",
            "replay recording/ new/ --against old/ --output markdown",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["recording"], metavar="RECORDING"),
        click.Argument(["policies"], nargs=-1, required=True, metavar="POLICY..."),
        click.Option(
            ["--against"],
            multiple=True,
            type=str,
            help="Files or folders with the policies to compare with, instead of the"
            " recorded answers.",
        ),
        click.Option(
            ["--facts"],
            default="",
            help="File of the command facts: data of the cluster that is not in the"
            " recording, and PolicyExceptions.",
        ),
        click.Option(
            ["--output", "-o"],
            type=click.Choice(["table", "json", "markdown"]),
            default="table",
            help="Format of the output.",
        ),
        click.Option(
            ["--limit"],
            type=click.IntRange(0),
            default=50,
            help="Requests listed by table and markdown; 0: all.",
        ),
        click.Option(
            ["--fail-on"],
            multiple=True,
            type=str,
            help="Exit with 1 on these changes: denied, allowed, mutated, undecidable,"
            " or none. Default: all of them.",
        ),
    ],
    help="Shows which recorded requests other policies would decide differently: now"
    " denied, now allowed, mutated differently, or not decidable from the recording."
    "\n\nRECORDING is a folder that the server has written (KYVERNO_MP_RECORD_DIR), or"
    " a file in it. POLICY is a file or folder with all policies and PolicyExceptions"
    " that would be in force. Nothing is applied, and no cluster is used.",
)
