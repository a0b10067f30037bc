"""``test``: compare the results of policies with those that test files expect.

Room: cli. Takes: folders with kyverno-test.yaml files. Gives: a table per test, a
summary, the exit code. May touch: files below the folders, standard output, the clock.
Next: one_test, results. Source: docs/behaviour/cli 14, 15.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.git import GitAccess, cloned, is_git
from kyverno_mp.cli.testing.compare import TestRun
from kyverno_mp.cli.testing.files import (
    Selector,
    TestFile,
    discover,
    read_tests,
)
from kyverno_mp.cli.testing.jobs import Echo, jobs_for, run_all
from kyverno_mp.cli.testing.one_test import run_test
from kyverno_mp.cli.testing.options import Options
from kyverno_mp.cli.testing.results import (
    print_differences,
    print_summary,
    print_table,
    write_whole,
)
from kyverno_mp.errors import Error


def run(options: Options) -> int:
    """Run all tests below the folders and print; raises CommandFailed."""
    with ExitStack() as stack:
        access = GitAccess(options.git_branch)
        # KYVERNO: every URL is a git repository (docs/behaviour/cli 4).
        folders = [
            str(stack.enter_context(cloned(path, access))) if is_git(path) else path
            for path in options.folders
        ]
        return _run_in(folders, options)


def _run_in(folders: Sequence[str], options: Options) -> int:
    # If the output is data, messages about the run go to standard error.
    echo = partial(click.echo, err=bool(options.output_format))
    selector = Selector(options.test_case_selector)
    if selector.problems:
        echo("\nFilter errors:")
        for problem in selector.problems:
            echo(f"  Error: {problem}")
    tests = _load(folders, options, echo)
    if not tests:
        echo("\nNo test yamls available")
        if options.require_tests:
            raise CommandFailed("no tests found")
        if selector.problems:
            raise CommandFailed(selector.problems[0])
        write_whole((), (), options)
        return 0
    chosen = []
    for test in tests:
        test.results = [e for e in test.results if selector.keeps(e)]
        if test.results:
            chosen.append(test)
    runs: list[TestRun] = []
    with progress("Testing", len(chosen), "tests") as advance:

        def echo_below(line: str) -> None:
            advance.hide()
            echo(line)

        outcomes = run_all(
            chosen,
            lambda test, echo: run_test(
                test,
                echo,
                registry=options.registry,
                layout=options.image_layout,
                strict=options.require_valid,
            ),
            echo_below,
            jobs_for(options.jobs, len(chosen)),
            advance,
        )
        try:
            for outcome in outcomes:
                runs.append(outcome)
                advance.hide()
                if not (options.output_format or options.fail_only):
                    print_table(outcome.rows, options)
                print_differences(outcome.rows, options)
        except (CommandFailed, Error):
            # The results of the earlier tests are still printed as one document.
            write_whole(chosen[: len(runs)], runs, options)
            raise
    write_whole(chosen, runs, options)
    print_summary(chosen, runs, options, echo)
    return 0


def _load(folders: Sequence[str], options: Options, echo: Echo) -> list[TestFile]:
    tests: list[TestFile] = []
    errors: list[tuple[Path, str]] = []
    for path in discover(folders, options.file_name, echo):
        try:
            tests.extend(read_tests(path, echo))
        except CommandFailed as error:
            if "deprecated schema" in error.message:
                raise
            errors.append((path, error.message))
    if errors:
        echo("\nTest errors:")
        for path, message in errors:
            echo(f"  Path: {path}\n    Error: {message}")
        raise CommandFailed(f"found {len(errors)} errors after loading tests")
    return tests


def called(
    folders: tuple[str, ...], *, output_format: str | None, **flags: object
) -> int:
    """Run the command with the flags that click parsed."""
    if not folders:
        raise CommandFailed("requires at least 1 arg(s), only received 0")
    options = Options(folders=folders, output_format=output_format or "", **flags)  # type: ignore[arg-type]  # click checked the types
    if not options.watch:
        return run(options)
    from kyverno_mp.cli.watch import watch  # only for --watch

    return watch(folders, lambda: run(options))
