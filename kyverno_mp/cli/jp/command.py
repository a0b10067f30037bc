"""``jp``: evaluate a JMESPath expression, print its tree, list functions.

Room: cli. Takes: expressions, files, standard input. Gives: JSON on standard output.
May touch: files named by the user, standard input and output, the clock.
Source: docs/behaviour/cli 16.
"""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.reading import read_file, read_standard_input
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid, InputError
from kyverno_mp.expr.jmespath.link import Query
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.go.gotext import json_text, text_bytes
from kyverno_mp.values.jsonvalue import Json


def _runtime(*, keeps_bytes: bool = False) -> Runtime:
    return Runtime(
        now=lambda: datetime.now(UTC).astimezone(),
        monotonic_ns=time.monotonic_ns,
        ints_are_numbers=True,
        random_bytes=os.urandom,
        resolve_host=resolve_host,
        keeps_bytes=keeps_bytes,
    )


def _read_input(path: str) -> Json:
    data = _read(path) if path else read_standard_input()
    documents = load(data, file=path or "-", with_lists=True)
    return documents[0].raw if documents else None


def _read(path: str) -> bytes:
    try:
        return read_file(path, is_argument=True)
    except OSError as error:
        message = f"failed open file {path}: {read_error(error, path)}"
        raise CommandFailed(message) from error


def _ask(prompt: str) -> None:
    say("Reading from terminal input.")
    click.echo(prompt)


def query(
    expressions: tuple[str, ...],
    input_path: str,
    files: tuple[str, ...],
    *,
    compact: bool,
    unquoted: bool,
) -> None:
    """Run queries on an input; numbers are float64, as upstream."""
    queries = [*expressions, *(_read(file).decode() for file in files)]
    if not queries and not input_path:
        raise CommandFailed("at least one query or input object is required")
    if not queries:
        _ask("Enter a jmespath expression and hit Ctrl+D.")
        queries = [sys.stdin.read()]
    data = _read_input(input_path) if input_path else None
    if data is None:
        # KYVERNO: null is treated as a missing input (docs/behaviour/cli 16).
        _ask("Enter input object and hit Ctrl+D.")
        data = _read_input("")
    for expression in queries:
        _run_query(expression.strip(), data, compact=compact, unquoted=unquoted)


def _run_query(expression: str, data: Json, *, compact: bool, unquoted: bool) -> None:
    try:
        query = search(expression)
    except ExpressionInvalid as error:
        raise CommandFailed(
            f"failed to compile JMESPath: {expression}, error: {error.message}"
        ) from error
    try:
        value = _found(query, data)
    except InputError as error:
        raise CommandFailed(
            f"error evaluating JMESPath expression: {error.message}"
        ) from error
    # KYVERNO: if a query fails, only the error is printed.
    click.echo(f"# {expression}")
    if unquoted and isinstance(value, str):
        _print_text(value)
        return
    try:
        output = json_text(value) if compact else _indented(value, "")
    except ExpressionFailed as error:
        raise CommandFailed(
            f"error marshalling result to JSON: {error.message}"
        ) from error
    click.echo(output)


def _print_text(string: str) -> None:
    """Print a string without quotes; bytes that are no text are written as they are."""
    data = text_bytes(string)
    try:
        click.echo(data.decode())
    except UnicodeDecodeError:
        click.echo(data)


def _found(query: Query, data: Json) -> Json:
    """Run a query; keep bytes that are not UTF-8 if all its functions support them."""
    try:
        return query(_runtime(keeps_bytes=True), data)
    except UnicodeEncodeError:
        return query(_runtime(), data)


def _indented(value: Json, indent: str) -> str:
    """Return JSON in the format of Go's MarshalIndent: two spaces, sorted keys."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = [
            f"{deeper}{json_text(key)}: {_indented(value[key], deeper)}"
            for key in sorted(value)
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        lines = [f"{deeper}{_indented(item, deeper)}" for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json_text(value)


def parse_all(expressions: tuple[str, ...], files: tuple[str, ...]) -> None:
    """Print the syntax tree of expressions."""
    from kyverno_mp.cli.jp.tree import tree_text  # needed only for the tree
    from kyverno_mp.expr.jmespath.parse import parse

    queries = [*expressions, *(_read(file).decode() for file in files)]
    if not queries:
        _ask("Enter a jmespath expression and hit Ctrl+D.")
        queries = [sys.stdin.read()]
    for query in queries:
        expression = query.strip()
        try:
            node = parse(expression)
        except ExpressionInvalid as error:
            pointer = _pointer(expression, error.where.column)
            raise CommandFailed(error.message + pointer) from error
        click.echo(f"# {expression}")
        click.echo(tree_text(node))


def _pointer(expression: str, column: int) -> str:
    """Return the expression with a caret below the error, "" without a position."""
    return f"\n{expression}\n{' ' * (column - 1)}^" if column else ""


def functions(names: Sequence[str]) -> None:
    """Print the signature and note of the named functions, or of all functions."""
    from kyverno_mp.expr.jmespath.functions.calls import catalogue

    for entry in sorted(catalogue(), key=lambda item: item.signature):
        if not names or entry.name in names:
            click.echo(f"Name: {entry.name}")
            click.echo(f"  Signature: {entry.signature}")
            click.echo(f"  Note:      {entry.note}\n")
