"""``version``: print the version of the program, and that of Kyverno which it follows.

Room: cli. Takes: the format. Gives: text, JSON or YAML on standard output.
Next: none. May touch: standard output.
Source: docs/behaviour/cli 19; Kyverno 1.20 (``-o``; its fields and message).
"""

import json

import click

from kyverno_mp import UPSTREAM_VERSION, __version__
from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.shell.errors import CommandFailed

_UNKNOWN = "---"
"""Build time and commit, which no build of ours has."""


def _run(output: str) -> None:
    facts = {
        "version": __version__,
        "time": _UNKNOWN,
        "gitCommitId": _UNKNOWN,
        "kyvernoVersion": UPSTREAM_VERSION,
    }
    if output == "json":
        click.echo(json.dumps(facts, indent=2))
    elif output == "yaml":
        from kyverno_mp.cli.output.yaml_text import dump_plain

        click.echo(dump_plain(facts), nl=False)
    elif output:
        supported = "(supported formats: json, yaml)"
        raise CommandFailed(f"invalid output format: {output} {supported}")
    else:
        click.echo(
            f"Version: {__version__}\nTime: {_UNKNOWN}\nGit commit ID: {_UNKNOWN}\n"
            f"Follows Kyverno: {UPSTREAM_VERSION}"
        )


command = Command(
    "version",
    (
        Example("Print the version", "version"),
        Example("Print it for a script", "version -o json"),
    ),
    callback=_run,
    params=[click.Option(["-o", "--output"], default="", help="Format: json or yaml.")],
    help="Prints the version of kyverno-mp, and the version of Kyverno whose results it"
    " follows.",
)
