"""Declare the commands that preview what a controller would do to a cluster.

Room: cli. Takes: the name, examples and help of the command. Gives: the command.
Next: cli/commands/cleanup.py, cli/commands/generate.py.
Source: docs/cleanup.md (preview); docs/background.md (preview).
"""

from collections.abc import Callable, Sequence
from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def preview_command(
    name: str,
    examples: Sequence[Example],
    *,
    callback: Callable[..., Any],
    namespace_help: str,
    summary: str,
) -> Command:
    """Return the command; ``namespace_help``: help of ``--kyverno-namespace``."""
    return Command(
        name,
        examples,
        callback=callback,
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
                ["--kyverno-namespace"], default="kyverno", help=namespace_help
            ),
            click.Option(
                ["--exception-namespace"],
                default="",
                help="Namespace whose PolicyExceptions apply to policies in CEL, as set"
                " in the service; * for all namespaces. Without it, none applies.",
            ),
        ],
        help=f"{summary} POLICY is a file, - for standard input, or the name of a"
        " stored policy: name or namespace/name.",
    )
