"""Declare ``merge``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/merge.py.
Source: docs/fleets.md.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    from kyverno_mp.cli.merge import called

    return called(**flags)


command = Command(
    "merge",
    (
        Example(
            "Evaluate a dump in two parts, and print the results",
            "{} apply p/ -r dump.jsonl --shard 1/2 > 1.jsonl\n"
            "{} apply p/ -r dump.jsonl --shard 2/2 > 2.jsonl\n"
            "{} merge 1.jsonl 2.jsonl",
        ),
    ),
    callback=_run,
    params=[click.Argument(["files"], nargs=-1, required=True)],
    help="Prints the results of all shards of a run as 'apply' prints those of one run,"
    " with its exit code.\n\nFILES are the records of 'apply --shard'.",
)
