"""Declare ``jp`` and its commands.

Room: cli. Takes: the arguments that click parsed. Gives: the group.
Next: cli/jp/command.py.
Source: docs/behaviour/cli 16.
"""

from typing import Any

import click

from kyverno_mp.cli.commands.declare import Command, Example, Group


def _query(**flags: Any) -> None:
    # Imported late: the functions need libraries that help pages do not need.
    from kyverno_mp.cli.jp.command import query

    query(**flags)


def _parse(**flags: Any) -> None:
    from kyverno_mp.cli.jp.command import parse_all  # imported late

    parse_all(**flags)


def _function(**flags: Any) -> None:
    from kyverno_mp.cli.jp.command import functions  # imported late

    functions(**flags)


_QUERY = Example("Query a file", "jp query -i pod.yaml 'spec.containers[].image'")
_PARSE = Example("Print the syntax tree of an expression", "jp parse 'a.b[0]'")
_FUNCTION = Example("Print what a function takes", "jp function truncate")

command = Group(
    "jp",
    (_QUERY, _PARSE, _FUNCTION),
    help="Runs JMESPath queries with the functions of Kyverno.",
    commands=[
        Command(
            "jp query",
            (
                _QUERY,
                Example(
                    "Query the output of another program",
                    "jp query -u 'items[].metadata.name' < pods.json",
                ),
            ),
            callback=_query,
            params=[
                click.Argument(["expressions"], nargs=-1),
                click.Option(
                    ["-i", "--input", "input_path"], default="", help="Input file."
                ),
                click.Option(
                    ["-q", "--query", "files"],
                    multiple=True,
                    help="Files that contain a query.",
                ),
                click.Option(
                    ["-c", "--compact"], is_flag=True, help="Print compact JSON."
                ),
                click.Option(
                    ["-u", "--unquoted"],
                    is_flag=True,
                    help="Print strings without quotes.",
                ),
            ],
            help="Runs queries on an input. Numbers are float64, as in Kyverno.",
        ),
        Command(
            "jp parse",
            (_PARSE,),
            callback=_parse,
            params=[
                click.Argument(["expressions"], nargs=-1),
                click.Option(
                    ["-f", "--file", "files"],
                    multiple=True,
                    help="Files that contain an expression.",
                ),
            ],
            help="Prints the syntax tree of expressions.",
        ),
        Command(
            "jp function",
            (_FUNCTION, Example("List all functions", "jp function")),
            callback=_function,
            params=[click.Argument(["names"], nargs=-1)],
            help="Prints the signature and description of functions; without NAMES,"
            " of all functions.",
        ),
    ],
)
