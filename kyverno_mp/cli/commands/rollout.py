"""Declare ``rollout`` and its commands.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: cli/rollout.py.
Source: docs/gradual-enforcement.md.
"""

from functools import partial
from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group

_STATUS = Example("Show the gradual enforcement of all policies", "rollout status")
_PERMISSION = (
    " Needs permission to list the policies, and to get and update the ConfigMap"
    " kyverno-mp-rollouts in Kyverno's namespace."
)
_HELP = {
    "pause": "Keeps the share of a policy as it is until somebody resumes it.",
    "resume": "Continues after a pause or an abort; the step begins anew.",
    "abort": "Enforces a policy for nobody until somebody resumes it; it audits.",
}


def _status(**flags: Any) -> None:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.rollout import status

    status(**flags)


def _change(action: str, **flags: Any) -> None:
    from kyverno_mp.cli.rollout import change

    change(action, **flags)


def _of_cluster() -> list[click.Parameter]:
    return [
        click.Option(
            ["--kyverno-namespace"], default="kyverno", help="Kyverno's namespace."
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
    ]


def _changing(action: str) -> Command:
    line = f"rollout {action} Policy/team-a/require-limits"
    policy = click.Argument(["policy"], metavar="KIND/[NAMESPACE/]NAME")
    return Command(
        f"rollout {action}",
        (Example(f"{action.capitalize()} the rollout of a policy", line),),
        callback=partial(_change, action),
        params=[policy, *_of_cluster()],
        help=_HELP[action] + _PERMISSION,
    )


command = Group(
    "rollout",
    (_STATUS,),
    help="Shows and changes how policies are put into force gradually.",
    commands=[
        Command(
            "rollout status",
            (_STATUS,),
            callback=_status,
            params=[
                click.Option(
                    ["-o", "--output"],
                    type=click.Choice(["table", "json"]),
                    default="table",
                    help="Format.",
                ),
                *_of_cluster(),
            ],
            help="Shows phase, share in force and next step of each policy that is"
            " enforced gradually. Needs permission to list the policies and to get the"
            " ConfigMap kyverno-mp-rollouts in Kyverno's namespace.",
        ),
        *map(_changing, _HELP),
    ],
)
