"""Declare ``json scan``.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: cli/scan/scan.py.
Source: docs/behaviour/cli 19.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group


def _scan(**flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    from kyverno_mp.cli.scan.scan import scan

    return scan(**flags)


_SCAN = Example(
    "Scan a Terraform plan", "json scan --payload plan.json --policy policies/"
)

command = Group(
    "json",
    (_SCAN,),
    help="Evaluates json.kyverno.io policies for any JSON or YAML.",
    commands=[
        Command(
            "json scan",
            (
                _SCAN,
                Example(
                    "Scan the elements of a list",
                    "json scan --payload pods.json --pre-process items --policy p.yaml",
                ),
            ),
            callback=_scan,
            params=[
                click.Option(["--payload"], required=True, help="JSON or YAML file."),
                click.Option(
                    ["--pre-process"],
                    multiple=True,
                    help="JMESPath query that changes the payload first.",
                ),
                click.Option(
                    ["--policy", "paths"],
                    multiple=True,
                    help="Policy files or folders.",
                ),
                click.Option(
                    ["--labels"],
                    multiple=True,
                    help="Label selectors of policies: k=v, k!=v, k, !k, k in (v,w),"
                    " k notin (v).",
                ),
                click.Option(
                    ["--output"],
                    type=click.Choice(["text", "json"]),
                    default="text",
                    help="Format of the output.",
                ),
            ],
            help="Scans a payload; a list is scanned element by element.",
        )
    ],
)
