"""Declare ``authors``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: authors.py.
Source: docs/operate.md (the author of a namespaced policy).
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example


def _run(**flags: Any) -> None:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.authors import called

    called(**flags)


command = Command(
    "authors",
    (
        Example("List the policies of the current context", "authors"),
        Example("Of another one, for a program", "authors --context prod -o json"),
    ),
    callback=_run,
    params=[
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            help="Format.",
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
    ],
    help="Lists the stored namespaced policies that use permissions of the service and"
    " whose author lacks them (exit code 1) or is unknown, for example before an"
    " upgrade. Needs permission to list the policies and to create"
    " SubjectAccessReviews.",
)
