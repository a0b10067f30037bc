"""Declare ``test``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/testing/command.py.
Source: docs/behaviour/cli 14.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.formats import OF_TEST


def _run(folders: tuple[str, ...], **flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    from kyverno_mp.cli.testing.command import called

    return called(folders, **flags)


command = Command(
    "test",
    (
        Example("Run all tests below a folder", "test tests/"),
        Example("Write a report for a CI server", "test tests/ -o junit > tests.xml"),
        Example(
            "Run the tests of one policy",
            "test tests/ -t policy=require-labels",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["folders"], nargs=-1),
        click.Option(
            ["-f", "--file-name"],
            default="kyverno-test.yaml",
            help="Name of the test files.",
        ),
        click.Option(
            ["-t", "--test-case-selector"],
            default="policy=*,rule=*,resource=*",
            help="Results to compare; wildcards are allowed.",
        ),
        click.Option(
            ["-o", "--output-format"],
            type=click.Choice(OF_TEST),
            help="Print one document instead of tables.",
        ),
        click.Option(
            ["--output-file"],
            default="",
            help="Also write all rows, in the output format, to this file.",
        ),
        click.Option(
            ["-b", "--git-branch"], default="", help="Branch of git repositories."
        ),
        click.Option(
            ["--registry"], is_flag=True, help="Allow access to image registries."
        ),
        click.Option(
            ["--image-layout"],
            default="",
            help="OCI image layout folder to read instead of registries.",
        ),
        click.Option(["--fail-only"], is_flag=True, help="Print failed results only."),
        click.Option(["--remove-color"], is_flag=True, help="Print without colours."),
        click.Option(
            ["--detailed-results"], is_flag=True, help="Add messages to the rows."
        ),
        click.Option(["--require-tests"], is_flag=True, help="Fail if no test exists."),
        click.Option(
            ["--warnings-as-errors"],
            is_flag=True,
            help="Exit with 1 if a warning was printed.",
        ),
        click.Option(
            ["--require-valid"],
            is_flag=True,
            help="Fail if a policy file or a policy of a test cannot be used.",
        ),
        click.Option(
            ["--allow-skipped"],
            is_flag=True,
            help="Succeed even if tests need features that this version lacks.",
        ),
        click.Option(
            ["--jobs"],
            default=0,
            type=click.IntRange(0),
            help="Worker processes; 0: chosen by the amount of work, at most one per"
            " core.",
        ),
        click.Option(
            ["--watch"], is_flag=True, help="Run again whenever a file changes."
        ),
    ],
    help="Runs the tests of kyverno-test.yaml files.\n\nFOLDERS are searched"
    " recursively; git URLs (http, https, file) are cloned.\n\nTests of features"
    " that this version does not evaluate are skipped and listed.",
)
