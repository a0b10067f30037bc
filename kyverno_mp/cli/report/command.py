"""``report``: show the results of policy reports from a cluster or files.

Room: cli. Takes: the flags. Gives: tables, JSON, SARIF, JUnit, markdown or a page, on
standard output or in a file, and the exit code. Next: read, entries, page.
May touch: standard output, a file named by the user, the clock.
Source: docs/report.md.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kyverno_mp.cli.output.screen import has_colors, say
from kyverno_mp.cli.report.read import Scope, entries_of_cluster, entries_of_paths
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.dashboard.entries import RESULTS, SEVERITIES, Entry, Filters, urgency
from kyverno_mp.values.wildcard import contains_wildcard


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags, as click parsed them."""

    paths: tuple[str, ...]
    cluster: bool
    kubeconfig: str
    context: str
    selector: str
    results: tuple[str, ...]
    policies: tuple[str, ...]
    namespaces: tuple[str, ...]
    severities: tuple[str, ...]
    categories: tuple[str, ...]
    group_by: str
    output: str
    output_file: str
    limit: int
    fail_on: tuple[str, ...]
    title: str


def called(**flags: Any) -> int:
    """Run the command with the flags that click parsed."""
    for name in ("results", "policies", "namespaces", "severities", "fail_on"):
        flags[name] = _split(flags[name])
    options = Options(**flags)
    _check(options)
    entries = _entries(options)
    filters = Filters(
        results=options.results,
        policies=options.policies,
        namespaces=options.namespaces,
        severities=options.severities,
        categories=options.categories,
    )
    chosen = sorted((entry for entry in entries if filters.accept(entry)), key=urgency)
    _write(options, _rendered(options, chosen))
    return int(any(entry.result in options.fail_on for entry in chosen))


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(",") if part)


def _check(options: Options) -> None:
    """Raise CommandFailed for flags that have no effect or contradict each other."""
    if options.cluster and options.paths:
        raise CommandFailed("name files, or --cluster, not both")
    if not options.cluster:
        if not options.paths:
            raise CommandFailed(
                "name files or folders with reports, - for standard input, or --cluster"
            )
        for name in ("kubeconfig", "context", "selector"):
            if getattr(options, name):
                raise CommandFailed(f"--{name} has no meaning without --cluster")
    for flag, values, allowed in (
        ("--result", options.results, RESULTS),
        ("--fail-on", options.fail_on, RESULTS),
        ("--severity", options.severities, SEVERITIES),
    ):
        for value in values:
            if value not in allowed:
                message = f"{flag}: {value!r} is not one of {', '.join(allowed)}"
                raise CommandFailed(message)


def _entries(options: Options) -> list[Entry]:
    if not options.cluster:
        return entries_of_paths(options.paths)
    names = options.namespaces
    # For one exact namespace, the API server need not send other namespaces.
    is_one = len(names) == 1 and not contains_wildcard(names[0])
    scope = Scope(names[0] if is_one else "", options.selector)
    entries = entries_of_cluster(options.kubeconfig, options.context, scope)
    if not entries:
        say("the cluster has no results in reports", err=True)
    return entries


def _rendered(options: Options, entries: Sequence[Entry]) -> str:
    # Formats are imported late: a run prints only one of them.
    if options.output in ("json", "sarif", "junit"):
        from kyverno_mp.cli.report import data

        if options.output == "json":
            return data.as_json(entries, options.group_by)
        return (data.as_sarif if options.output == "sarif" else data.as_junit)(entries)
    if options.output == "html":
        from kyverno_mp.cli.report.page import page

        return page(
            entries,
            options.group_by,
            options.limit,
            title=options.title,
            created=datetime.now(UTC),
        )
    from kyverno_mp.cli.report.text import markdown, table

    if options.output == "markdown":
        return markdown(entries, options.group_by, options.limit)
    color = has_colors(is_removed=bool(options.output_file))
    return table(entries, options.group_by, options.limit, color=color)


def _write(options: Options, content: str) -> None:
    if options.output_file:
        Path(options.output_file).write_text(content, encoding="utf-8")
    else:
        sys.stdout.write(content)
