"""Print the results of tests: tables, one document for programs, and a summary.

Room: cli. Takes: TestFiles and their TestRuns. Gives: text on standard output or in a
file. Next: cli/testing/output. May touch: the file that --output-file names, standard
output and error. Source: docs/behaviour/cli 15.
"""

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import structs

from kyverno_mp.cli.output.screen import has_colors, say, show
from kyverno_mp.cli.output.table import Row
from kyverno_mp.cli.output.warned import refuse_warnings
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.testing.compare import TestRun
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.cli.testing.jobs import Echo
from kyverno_mp.cli.testing.options import Options
from kyverno_mp.cli.testing.output import render_failures, render_rows


def print_table(rows: list[Row], options: Options) -> None:
    """Print the rows of one test or all tests as a table."""
    click.echo()
    show(_table(rows, options))
    click.echo()


def print_differences(rows: Sequence[Row], options: Options) -> None:
    """Show differences even without --detailed-results, unlike upstream."""
    if options.detailed_results:
        return
    for row in rows:
        if row.reason == "Resource diff":
            say(f"{row.policy} {row.rule} {row.resource}:", err=True)
            for line in row.message.rpartition("\n\n")[2].splitlines():
                say(f"  {line}", err=True)


def write_whole(
    tests: Sequence[TestFile], runs: Sequence[TestRun], options: Options
) -> None:
    """Write all rows as one document, to a file or to standard output.

    Upstream prints a document for each test between lines of text, which programs
    cannot parse.
    """
    form, to_file = options.output_format, bool(options.output_file)
    if not (form or to_file):
        return
    if form in ("sarif", "github"):
        failures = (
            (row, str(test.path), test.document, origin)
            for test, outcome in zip(tests, runs, strict=True)
            for row, origin in zip(outcome.rows, outcome.origins, strict=True)
            if row.is_failure
        )
        output = render_failures(failures, form)
    else:
        reported = [row for outcome in runs for row in outcome.rows]
        if options.fail_only and not to_file:
            reported = [row for row in reported if row.is_failure]
        rows = [
            structs.replace(row, number=number)
            for number, row in enumerate(reported, 1)
        ]
        detailed = options.detailed_results
        output = render_rows(rows, form, detailed=detailed, color=False) + "\n"
    if not to_file:
        # KYVERNO: rows begin with an empty line, which JSON and YAML allow.
        if form in ("json", "yaml"):
            click.echo()
        show(output)
        return
    try:
        Path(options.output_file).write_text(output, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{options.output_file}: {error.strerror}") from error


def print_summary(
    tests: Sequence[TestFile], runs: list[TestRun], options: Options, echo: Echo
) -> None:
    """Print the counts; raises CommandFailed if the run failed."""
    good = sum(r.passed + r.skipped for r in runs)
    bad = sum(r.failed for r in runs)
    if options.fail_only:
        echo(f"\nTest Summary: {bad} out of {good + bad} tests failed\n")
    else:
        echo(f"\nTest Summary: {good} tests passed and {bad} tests failed\n")
    lacking = _print_skipped(tests, runs, echo)
    if bad:
        if options.fail_only and not options.output_format:
            failures = [row for r in runs for row in r.rows if row.is_failure]
            _print_failures(failures, options)
        raise CommandFailed(f"{bad} tests failed")
    if unread := [path for outcome in runs for path in outcome.unread]:
        raise CommandFailed(f"could not be read: {', '.join(unread)}")
    refuse_warnings(
        sum(outcome.warnings for outcome in runs),
        as_errors=options.warnings_as_errors,
    )
    if lacking and not options.allow_skipped:
        raise CommandFailed(
            f"{lacking} tests were skipped: they need features that this version does"
            " not evaluate (--allow-skipped ignores them)"
        )


def _print_skipped(tests: Sequence[TestFile], runs: list[TestRun], echo: Echo) -> int:
    """Print the skipped tests with reasons; return the number of their results.

    These results count neither as passed nor as failed.
    """
    skipped = [
        (test, outcome)
        for test, outcome in zip(tests, runs, strict=True)
        if outcome.lacking
    ]
    results = sum(len(outcome.rows) for _, outcome in skipped)
    if skipped:
        files = f"{len(skipped)} test file" + ("s" if len(skipped) > 1 else "")
        echo(f"Skipped: {results} tests of {files}\n")
    for test, outcome in skipped:
        reason = f"not evaluated by this version: {', '.join(outcome.lacking)}"
        say(f"skipped: {test.path}: {reason}", err=True)
    return results


def _print_failures(failures: list[Row], options: Options) -> None:
    """Print all failed rows together, renumbered."""
    for number, row in enumerate(failures, 1):
        row.number = number
    say("Aggregated Failed Test Cases : ")
    show(_table(failures, options))


def _table(rows: list[Row], options: Options) -> str:
    color = has_colors(is_removed=options.remove_color)
    return render_rows(rows, "", detailed=options.detailed_results, color=color)
