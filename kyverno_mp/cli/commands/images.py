"""Declare ``images`` and its command.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: cli/images/command.py.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group

_REGISTRY = Example(
    "Explain why a policy accepts or rejects an image",
    "images explain ghcr.io/org/app:v1 -p policies/",
)
_LAYOUT = Example(
    "The same without a network, as JSON",
    "images explain ghcr.io/org/app:v1 -p policy.yaml --layout ./app -o json",
)


def _explain(**flags: Any) -> int:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.images.command import called

    return called(**flags)


command = Group(
    "images",
    (_REGISTRY,),
    help="Explains how policies verify the signatures of an image.",
    commands=[
        Command(
            "images explain",
            (_REGISTRY, _LAYOUT),
            callback=_explain,
            params=[
                click.Argument(["image"]),
                click.Option(
                    ["-p", "--policy", "policies"],
                    multiple=True,
                    required=True,
                    help="Files or folders with policies.",
                ),
                click.Option(
                    ["--layout"],
                    default="",
                    help="OCI image layout folder to read instead of the registry.",
                ),
                click.Option(
                    ["-n", "--namespace"],
                    default="default",
                    help="Namespace of the Pod that would run the image.",
                ),
                click.Option(
                    ["-o", "--output"],
                    type=click.Choice(["text", "json"]),
                    default="text",
                    help="Format of the output.",
                ),
            ],
            help="Shows step by step how the verifyImages rules of policies verify an"
            " image: the registry's data (digest, signatures, attestations,"
            " referrers), the attestors that succeed, and the failed checks of each"
            " signature. The credentials are read from docker's config.json.",
        ),
    ],
)
