"""Declare ``lint``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/lint/command.py.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.formats import OF_LINT


def _run(*, fix: bool, write: bool, **flags: Any) -> int:
    if write and not fix:
        raise click.UsageError("--write needs --fix")
    if fix:
        from kyverno_mp.cli.lint.mend import mend

        return mend(flags["paths"], write=write)
    # Imported late: help pages do not need the compiler.
    from kyverno_mp.cli.lint.command import called

    return called(**flags)


command = Command(
    "lint",
    (
        Example("Check a folder before you apply it to a cluster", "lint policies/"),
        Example(
            "Annotate the lines of a pull request on GitHub",
            "lint policies/ -o github",
        ),
        Example(
            "Check policies that only the command line evaluates",
            "lint policies/ --target cli --strict",
        ),
        Example(
            "Find misspelt kinds, also of custom kinds",
            "lint policies/ --crd-paths crds.yaml",
        ),
        Example("Show how outdated notation is mended", "lint policies/ --fix"),
        Example(
            "Ignore one kind of finding",
            "lint policies/ --ignore 'lint.deprecated_*'",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["paths"], nargs=-1, required=True),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(OF_LINT),
            default="text",
            help="Format of the findings.",
        ),
        click.Option(
            ["--target"],
            type=click.Choice(["server", "cli"]),
            default="server",
            help="Evaluator of the policies. Only for the server, policies and rules"
            " that it rejects or skips are errors or warnings.",
        ),
        click.Option(
            ["--crd-paths", "--crd-path", "crd_paths"],
            multiple=True,
            help="Files with CustomResourceDefinitions, whose kinds are known.",
        ),
        click.Option(
            ["--cluster"], is_flag=True, help="Only the kinds of the cluster are known."
        ),
        click.Option(["--kubeconfig"], default="", help="Kubeconfig file."),
        click.Option(["--context"], default="", help="Context of the kubeconfig."),
        click.Option(
            ["--strict"], is_flag=True, help="Exit with 1 if there are warnings."
        ),
        click.Option(
            ["--ignore"],
            multiple=True,
            help="Codes to ignore; wildcards are allowed.",
        ),
        click.Option(
            ["--fix"],
            is_flag=True,
            help="Print a diff that mends outdated notation, without a change of"
            " meaning, instead of findings; exit with 1 if there is one.",
        ),
        click.Option(
            ["--write"], is_flag=True, help="With --fix: change the files instead."
        ),
    ],
    help="Finds errors and likely mistakes in policies.\n\nAll findings are printed in"
    " one run, each with file, line and a stable code. PATHS are files, folders, or -"
    " for standard input. Files that contain no policies (kustomization.yaml,"
    " artifacthub-pkg.yml, Helm charts, other objects) are listed as notes.",
)
