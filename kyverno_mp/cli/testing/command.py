"""``test``: compare the results of policies with those that test files expect.

Room: cli. Takes: folders with kyverno-test.yaml files. Gives: a table per test, a
summary, the exit code. May touch: files below the folders, standard output, the clock.
Source: docs/behaviour/cli 14, 15.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from kyverno_mp.cli.apply.admission_policies import VALIDATING, AdmissionInput
from kyverno_mp.cli.apply.cel_policies import CelInput, Payload
from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.errors import CommandFailed, NotEvaluated
from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.table import Row
from kyverno_mp.cli.sources.compiled import (
    Compiled,
    compile_admission,
    compile_all,
    compile_cel,
)
from kyverno_mp.cli.sources.exceptions import Exceptions, load_exceptions
from kyverno_mp.cli.sources.git import GitAccess, cloned, is_git
from kyverno_mp.cli.sources.payloads import (
    ContextFile,
    load_check_request,
    load_context,
    load_payload,
)
from kyverno_mp.cli.sources.policies import PolicySet, load_policies
from kyverno_mp.cli.sources.resources import load_resources, parse
from kyverno_mp.cli.sources.user_info import UserInfo, deprecation, load_user_info
from kyverno_mp.cli.sources.values_file import Values, load_values, values_from
from kyverno_mp.cli.testing.checks import check_rows
from kyverno_mp.cli.testing.compare import Key, TestRun, compare, key_of, not_run
from kyverno_mp.cli.testing.files import (
    Selector,
    TestFile,
    discover,
    read_tests,
)
from kyverno_mp.cli.testing.jobs import Echo, jobs_for, run_all
from kyverno_mp.cli.testing.output import render_failures, render_rows
from kyverno_mp.errors import Error
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.fields.mutation import CloneFrom
from kyverno_mp.values.jsonvalue import Json


def run_test(test: TestFile, echo: Echo, *, registry: bool = False) -> TestRun:
    """Run one test and compare; raises CommandFailed when it cannot be loaded.

    A test that needs a feature that this version does not evaluate is not run: a
    partial run proves little, because policies change the input of other policies.
    """
    try:
        return _run_test(test, echo, registry=registry)
    except NotEvaluated as error:
        echo(f"  Skipped: {error.message}")
        return not_run(test, [error.message.partition(": ")[2]])
    except CommandFailed as error:
        text = f"failed to run test ({error.message})"
        raise CommandFailed(text, error.exit_code) from error


def _run_test(test: TestFile, echo: Echo, *, registry: bool) -> TestRun:
    echo(f"Loading test  ( {test.path} ) ...")
    echo("  Loading values/variables ...")
    values = _values(test, echo)
    user = _user(test, echo)
    echo("  Loading policies ...")
    policies = load_policies(test.paths("policies"))
    if policies.lost_paths:
        raise CommandFailed(
            f"error: failed to load policies ({policies.lost_paths[0]})"
        )
    for path, reason in policies.failed_paths:
        echo(f"  ERROR: {path}: {reason}")
    if lacking := [*policies.unsupported, *_lacking_rules(test, policies)]:
        text = ", ".join(lacking)
        raise NotEvaluated(f"not evaluated by this version: {text}")
    echo("  Loading resources ...")
    unread: list[str] = []
    resources = _objects(test, "resources", echo, unread)
    name, payload = _payloads(test, echo)
    if test.raw.get("clusterResources"):
        echo("Loading Kubernetes resources ...")
    targets = _objects(test, "targetResources", echo, unread)
    cluster_data = load_cluster_data(
        test.paths("clusterResources"),
        folder=test.folder,
        registry=registry,
        targets=targets,
        resources=resources,
        context=_context(test),
    )
    echo("  Loading exceptions ...")
    exceptions = load_exceptions(test.paths("exceptions"))
    is_validating = any(one.kind == VALIDATING for one in policies.admission)
    if exceptions.of_rules and is_validating:
        raise CommandFailed(
            "error: use of exceptions with ValidatingAdmissionPolicies is not supported"
        )
    compiled = compile_all(policies.documents, exceptions.of_rules)
    cel = _compiled_cel(policies, exceptions, compiled)
    count = len(policies.documents) + len(policies.admission) + len(cel)
    echo(_applying(count, len(resources), exceptions.count))
    evaluator = Evaluator(
        compiled.policies,
        values=values,
        user=user,
        cluster_data=cluster_data,
        clock=clock(),
        sources=_clone_sources(test, policies),
        admission=_admission(test, policies, echo, unread),
        cel=CelInput(cel),
    )
    responses: dict[Key, list[Response]] = {}
    for resource in resources:
        responses.setdefault(key_of(resource), []).extend(evaluator.apply(resource))
    if payload is not None:
        key = ("", "", "", name)
        responses.setdefault(key, []).extend(evaluator.apply(payload))
    echo("  Checking results ...")
    invalid = {name: error.message for name, error in compiled.invalid}
    run = compare(test, responses, invalid)
    flat = [one for listed in responses.values() for one in listed]
    for row in check_rows(
        test.raw.get("checks", []), flat, policies.raw, str(test.path)
    ):
        run.add_check(row)
    run.unread = unread
    return run


def _lacking_rules(test: TestFile, policies: PolicySet) -> Iterator[str]:
    """Yield the rules of expected results that this version does not evaluate."""
    for policy in policies.documents:
        wanted = {
            expected.rule
            for expected in test.results
            if expected.policy_name == policy.metadata.name
        }
        for rule in policy.spec.rules:
            lacking = missing_capability(rule)
            if lacking and {"", rule.name} & wanted:
                place = f"policy {policy.metadata.name}, rule {rule.name}"
                yield f"{place}: {lacking}"


def _compiled_cel(
    policies: PolicySet, exceptions: Exceptions, compiled: Compiled
) -> list[ValidatingPolicyIR]:
    """Compile the policies in CEL.

    Raises: CommandFailed for one that does not compile; upstream's run ends, too.
    """
    before = len(compiled.invalid)
    found = compile_cel(policies, exceptions.of_cel, compiled)
    for name, error in compiled.invalid[before:]:
        raise CommandFailed(f"failed to compile policy {name} ({error.message})")
    return found


def _context(test: TestFile) -> ContextFile | None:
    given = test.raw.get("context")
    return load_context(test.folder / given) if given else None


def _payloads(test: TestFile, echo: Echo) -> tuple[str, Payload | None]:
    """Return name and content of the JSON payload; check those for proxies.

    No kind of policy that this version evaluates reads those.
    """
    name = str(test.raw.get("jsonPayload", ""))
    payload = None
    if name:
        echo("  Loading JSON payload ...")
        payload = Payload(load_payload(test.folder / name))
    for field, words in (("httpPayloads", "HTTP"), ("envoyPayloads", "Envoy")):
        if test.raw.get(field):
            echo(f"  Loading {words} payloads ...")
            for path in test.paths(field):
                load_check_request(Path(path))
    return name, payload


def _admission(
    test: TestFile, policies: PolicySet, echo: Echo, unread: list[str]
) -> AdmissionInput:
    # KYVERNO: the numbers of parameters stay whole here, unlike in apply
    # (docs/behaviour/cli 5).
    params = _objects(test, "paramResources", echo, unread, floats=False)
    return AdmissionInput(compile_admission(policies), params)


def _clone_sources(test: TestFile, policies: PolicySet) -> dict[str, list[Json]]:
    """Return the clone sources, by the name of the rule.

    KYVERNO: the first result of a rule counts, for all policies with a rule of that
    name; a foreach gets no sources, and an unreadable file counts as none.
    """
    found: dict[str, list[Json]] = {}
    for policy in policies.documents:
        for rule in policy.spec.rules:
            generate = rule.generate
            if generate is None or not (
                generate.clone_list.kinds or generate.clone != CloneFrom()
            ):
                continue
            first = next((e for e in test.results if e.rule == rule.name), None)
            if first is None:
                continue
            path = test.folder / first.clone_source
            found.pop(rule.name, None)
            with suppress(OSError):
                found[rule.name] = parse(path.read_bytes(), str(path))
    return found


def _applying(policies: int, resources: int, exceptions: int) -> str:
    def count(number: int, one: str, many: str) -> str:
        return f"{number} {one if number == 1 else many}"

    return (
        f"  Applying {count(policies, 'policy', 'policies')} to"
        f" {count(resources, 'resource', 'resources')} with"
        f" {count(exceptions, 'exception', 'exceptions')} ..."
    )


def _values(test: TestFile, echo: Echo) -> Values:
    if "values" in test.raw:
        return values_from(test.raw["values"])
    if test.raw.get("variables"):
        try:
            return load_values(Path(test.raw["variables"]), echo, test.folder)
        except CommandFailed as error:
            raise CommandFailed(f"failed to decode yaml ({error.message})") from error
    return Values()


def _user(test: TestFile, echo: Echo) -> UserInfo | None:
    if not test.raw.get("userinfo"):
        return None
    echo("  Loading user infos ...")
    path = test.folder / test.raw["userinfo"]
    try:
        user = load_user_info(path)
    except CommandFailed as error:
        text = f"error: failed to load request info ({error.message})"
        raise CommandFailed(text) from error
    if user.deprecated:
        echo(deprecation("user infos", path))
        raise CommandFailed(
            f"userInfo file {test.raw['userinfo']} uses a deprecated schema — please"
            " migrate to the latest format"
        )
    return user


def _objects(
    test: TestFile, name: str, echo: Echo, unread: list[str], *, floats: bool = True
) -> list[dict[str, Json]]:
    found: dict[tuple[str, str, str, str], dict[str, Json]] = {}
    try:
        objects = load_resources(
            test.paths(name), floats=floats, echo=echo, unread=unread
        )
    except CommandFailed as error:
        raise CommandFailed(f"error: {error.message}") from error
    for raw in objects:
        api_version, kind, namespace, name = key_of(raw)
        key = (api_version.rpartition("/")[0], kind, namespace, name)
        if key in found:
            echo(f"  warning: found duplicated resource {kind} {name} {namespace}")
        else:
            found[key] = raw
    return list(found.values())


@dataclass(slots=True)
class Options:
    """The flags of ``test``."""

    folders: tuple[str, ...]
    file_name: str = "kyverno-test.yaml"
    test_case_selector: str = "policy=*,rule=*,resource=*"
    output_format: str = ""
    registry: bool = False
    fail_only: bool = False
    remove_color: bool = False
    detailed_results: bool = False
    require_tests: bool = False
    allow_skipped: bool = False
    git_branch: str = ""
    output_file: str = ""
    jobs: int = 0
    watch: bool = False


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
    # Where the output is data, all messages about the run go to standard error.
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
        _write_whole((), (), options)
        return 0
    wanted = []
    for test in tests:
        test.results = [e for e in test.results if selector.keeps(e)]
        if test.results:
            wanted.append(test)
    runs: list[TestRun] = []
    with progress("Testing", len(wanted), "tests") as advance:

        def echo_below(line: str) -> None:
            advance.hide()
            echo(line)

        outcomes = run_all(
            wanted,
            lambda test, echo: run_test(test, echo, registry=options.registry),
            echo_below,
            jobs_for(options.jobs, len(wanted)),
            advance,
        )
        try:
            for outcome in outcomes:
                runs.append(outcome)
                advance.hide()
                if not (options.output_format or options.fail_only):
                    click.echo(f"\n{_table(outcome.rows, options)}")
                _print_differences(outcome.rows, options)
        except (CommandFailed, Error):
            # The results of the tests before it are printed as a whole document, too.
            _write_whole(wanted[: len(runs)], runs, options)
            raise
    _write_whole(wanted, runs, options)
    return _summary(wanted, runs, options, echo)


def _print_differences(rows: Sequence[Row], options: Options) -> None:
    """Show differences also without --detailed-results, besides upstream's output."""
    if options.detailed_results:
        return
    for row in rows:
        if row.reason == "Resource diff":
            click.echo(f"{row.policy} {row.rule} {row.resource}:", err=True)
            for line in row.message.rpartition("\n\n")[2].splitlines():
                click.echo(f"  {line}", err=True)


def _write_whole(
    tests: Sequence[TestFile], runs: Sequence[TestRun], options: Options
) -> None:
    """Write all rows as one document, to a file or to standard output.

    Upstream prints a document for each test between lines of text, which no program
    can parse.
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
        text = render_failures(failures, form)
    else:
        reported = [row for outcome in runs for row in outcome.rows]
        if options.fail_only and not to_file:
            reported = [row for row in reported if row.is_failure]
        rows = [replace(row, number=number) for number, row in enumerate(reported, 1)]
        detailed = options.detailed_results
        text = render_rows(rows, form, detailed=detailed, color=False) + "\n"
    if not to_file:
        # KYVERNO: rows begin with an empty line, which JSON and YAML allow.
        click.echo(f"\n{text}" if form in ("json", "yaml") else text, nl=False)
        return
    try:
        Path(options.output_file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{options.output_file}: {error.strerror}") from error


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


def _summary(
    tests: Sequence[TestFile], runs: list[TestRun], options: Options, echo: Echo
) -> int:
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
    if lacking and not options.allow_skipped:
        raise CommandFailed(
            f"{lacking} tests were skipped: they need features that this version does"
            " not evaluate (--allow-skipped ignores them)"
        )
    return 0


def _print_skipped(tests: Sequence[TestFile], runs: list[TestRun], echo: Echo) -> int:
    """Print the tests that were not run, with reasons; returns their result count.

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
        text = f"not evaluated by this version: {', '.join(outcome.lacking)}"
        click.echo(f"skipped: {test.path}: {text}", err=True)
    return results


def _print_failures(failures: list[Row], options: Options) -> None:
    """Print all failed rows together, renumbered."""
    for number, row in enumerate(failures, 1):
        row.number = number
    click.echo("Aggregated Failed Test Cases : ")
    click.echo(_table(failures, options), nl=False)


def _table(rows: list[Row], options: Options) -> str:
    color = sys.stdout.isatty() and not options.remove_color
    return render_rows(rows, "", detailed=options.detailed_results, color=color)


def called(
    folders: tuple[str, ...], *, output_format: str | None, **flags: object
) -> int:
    """Run the command with the flags that click parsed."""
    if not folders:
        raise CommandFailed("requires at least 1 arg(s), only received 0")
    options = Options(folders=folders, output_format=output_format or "", **flags)  # type: ignore[arg-type]  # click checked the types
    if not options.watch:
        return run(options)
    from kyverno_mp.cli.watch import watch  # only for runs that watch

    return watch(folders, lambda: run(options))
