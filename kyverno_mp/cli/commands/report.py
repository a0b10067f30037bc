"""Declare ``report``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/report/command.py.
Source: docs/report.md.
"""

from typing import Any, Final

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.formats import OF_REPORT

_TEXT: Final[dict[str, Any]] = {"default": ""}
_MANY: Final[dict[str, Any]] = {"multiple": True, "type": str}


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.report.command import called

    return called(**flags)


command = Command(
    "report",
    (
        Example("Show the reports of a cluster", "report --cluster"),
        Example(
            "Write a page with charts",
            "report --cluster --output html --output-file report.html",
        ),
        Example(
            "Fail a pipeline on severe failures",
            "report reports.yaml --severity critical,high --fail-on fail,error",
        ),
        Example(
            "Show what apply reports, by namespace",
            "{} apply policies/ -r pods.yaml -p | {} report - --group-by namespace",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["paths"], nargs=-1, metavar="[PATH]..."),
        click.Option(
            ["--cluster", "-c", "cluster"], is_flag=True, help="Use a cluster."
        ),
        click.Option(["--kubeconfig"], **_TEXT, help="Kubeconfig file."),
        click.Option(["--context"], **_TEXT, help="Context of the kubeconfig."),
        click.Option(
            ["-l", "--selector"],
            **_TEXT,
            help="Only reports of the cluster with these labels.",
        ),
        click.Option(
            ["-n", "--namespace", "namespaces"],
            **_MANY,
            help="Only results for objects in these namespaces.",
        ),
        click.Option(
            ["--policy", "policies"],
            **_MANY,
            help="Only results of these policies; wildcards are allowed.",
        ),
        click.Option(
            ["--result", "results"],
            **_MANY,
            help="Only these results: fail, error, warn, pass, skip.",
        ),
        click.Option(
            ["--severity", "severities"],
            **_MANY,
            help="Only these severities: critical, high, medium, low, info.",
        ),
        click.Option(
            ["--category", "categories"],
            **_MANY,
            help="Only results of this category; wildcards are allowed.",
        ),
        click.Option(
            ["--group-by"],
            type=click.Choice(["policy", "namespace", "severity", "category"]),
            default="policy",
            help="Group the counts by this.",
        ),
        click.Option(
            ["--output", "-o"],
            type=click.Choice(OF_REPORT),
            default="table",
            help="Format of the output; html is one page with charts.",
        ),
        click.Option(["--output-file"], **_TEXT, help="File for the output."),
        click.Option(
            ["--limit"],
            type=click.IntRange(0),
            default=1000,
            help="Results listed by table, markdown and html, the most urgent first;"
            " 0: all.",
        ),
        click.Option(
            ["--fail-on"],
            **_MANY,
            help="Exit with 1 if a shown result is one of these, such as fail,error.",
        ),
        click.Option(
            ["--title"], default="Policy report", help="Title of the page (html)."
        ),
    ],
    help="Shows the results of policy reports (wgpolicyk8s.io/v1alpha2 and"
    " openreports.io/v1alpha1) of a cluster or of files.\n\nPATH is a file or folder"
    " with reports as YAML or JSON, or - for standard input. Flags that take several"
    " values can be repeated or take a comma-separated list.",
)
