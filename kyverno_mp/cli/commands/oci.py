"""Declare ``oci`` and its commands.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: oci.py.
Source: docs/behaviour/cli 19.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group

_CREDENTIALS = (
    "Credentials are read from docker's config.json (in DOCKER_CONFIG or ~/.docker)."
)
_PUSH = Example(
    "Store policies in a registry", "oci push policies/ -i registry.example.com/p:1"
)
_PULL = Example("Fetch them again", "oci pull policies/ -i registry.example.com/p:1")


def _push(**flags: Any) -> None:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.oci import push_called

    push_called(**flags)


def _pull(**flags: Any) -> None:
    from kyverno_mp.cli.oci import pull_called  # imported late

    pull_called(**flags)


def _options() -> list[click.Option]:
    return [
        click.Option(["-i", "--image"], default="", help="Reference of the image."),
        click.Option(
            ["--insecure"],
            is_flag=True,
            help="Accept any certificate of the registry, and plain HTTP. Not needed"
            " for a registry on this machine.",
        ),
    ]


command = Group(
    "oci",
    (_PUSH, _PULL),
    help="Keeps policies in image registries.",
    commands=[
        Command(
            "oci push",
            (_PUSH,),
            callback=_push,
            params=[click.Argument(["source"]), *_options()],
            help="Pushes the policies of a file or folder, each as a layer of an"
            f" image.\n\n{_CREDENTIALS}",
        ),
        Command(
            "oci pull",
            (_PULL,),
            callback=_pull,
            params=[click.Argument(["folder"]), *_options()],
            help=f"Writes the policies of an image to a folder.\n\n{_CREDENTIALS}",
        ),
    ],
)
