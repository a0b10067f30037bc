"""Declare ``fix`` and its commands.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: cli/fix/command.py.
Source: docs/behaviour/cli 18.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group
from kyverno_mp.values.kubernetes.policy_kinds import OF_TYPE

_KINDS = (OF_TYPE["validate"].name, "CEL")


def _policy(**flags: Any) -> None:
    # Imported late: help pages do not need YAML.
    from kyverno_mp.cli.fix.command import policy

    policy(**flags)


def _test(**flags: Any) -> None:
    from kyverno_mp.cli.fix.command import test  # imported late

    test(**flags)


_POLICY = Example("Show outdated syntax in policies", "fix policy policies/")
_TEST = Example("Update test files", "fix test tests/ --save")

command = Group(
    "fix",
    (_POLICY, _TEST),
    help="Updates policies and tests to the current schema.",
    commands=[
        Command(
            "fix policy",
            (
                _POLICY,
                Example("Update them", "fix policy policies/ --save"),
                Example(
                    "Show them as policies in CEL if these decide the same",
                    "fix policy policies/ --to CEL",
                ),
            ),
            callback=_policy,
            params=[
                click.Argument(["paths"], nargs=-1),
                click.Option(["--save"], is_flag=True, help="Write the changed files."),
                click.Option(
                    ["--to"],
                    type=click.Choice(_KINDS),
                    help="Rewrite ClusterPolicies as this kind, or with CEL each rule"
                    " and clean-up policies as their kinds in CEL, if both"
                    " decide requests or objects generated from their text alike. Other"
                    " policies are listed with the reason, and the exit code is 1.",
                ),
            ],
            help="Replaces deprecated syntax in policies. Saving a file removes its"
            " comments and keeps its other documents.",
        ),
        Command(
            "fix test",
            (_TEST,),
            callback=_test,
            params=[
                click.Argument(["paths"], nargs=-1),
                click.Option(
                    ["-f", "--file-name"],
                    default="kyverno-test.yaml",
                    help="Name of the test files.",
                ),
                click.Option(["--save"], is_flag=True, help="Write the changed files."),
                click.Option(
                    ["--force"],
                    is_flag=True,
                    help="Also write files that have not changed.",
                ),
                click.Option(
                    ["--compress"],
                    is_flag=True,
                    help="Merge results with equal content.",
                ),
            ],
            help="Replaces deprecated syntax in test files. The values files and user"
            " files that they name are updated, too.",
        ),
    ],
)
