"""``test``: do the policies say what the test files expect?

Room: cli. Takes: folders with kyverno-test.yaml files. Gives: a table per test, a
summary, the exit code. May touch: files below the folders, standard output, the clock.
Source: spec/cli.md 14, 15.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import click
import yaml

from kyverno_mp.cli.apply import clock
from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.evaluate import Evaluator, Response
from kyverno_mp.cli.policies import (
    PolicySet,
    compile_all,
    load_exceptions,
    load_policies,
)
from kyverno_mp.cli.report import report_word
from kyverno_mp.cli.resources import parse
from kyverno_mp.cli.table import Row, headers
from kyverno_mp.cli.table import render as render_table
from kyverno_mp.cli.test_file import (
    Expected,
    Selector,
    TestFile,
    discover,
    read_tests,
)
from kyverno_mp.cli.user_info import UserInfo, load_user_info
from kyverno_mp.cli.values_file import Values, load_values, values_from
from kyverno_mp.cli.world import load_world
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

_FORMATS = ("json", "yaml", "markdown", "junit")
_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class TestRun:
    """The rows of one test and what they add up to."""

    rows: list[Row] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def run_test(test: TestFile, *, say: bool = False, registry: bool = False) -> TestRun:
    """Run one test and compare; raises CommandFailed when it cannot be loaded."""
    tell = click.echo if say else _silent
    tell(f"Loading test  ( {test.path} ) ...")
    unsupported = test.unsupported()
    if unsupported:
        raise CommandFailed(
            f"{test.path}: not evaluated by this version: {', '.join(unsupported)}"
        )
    tell("  Loading values/variables ...")
    values = _values(test)
    user = _user(test, tell)
    tell("  Loading policies ...")
    policies = load_policies(test.paths("policies"))
    for path, reason in policies.failed_paths:
        tell(f"  ERROR: {path}: {reason}")
    if policies.unsupported:
        raise CommandFailed(
            f"{test.path}: not evaluated by this version: "
            + ", ".join(policies.unsupported)
        )
    tell("  Loading resources ...")
    resources = _resources(test, tell)
    if test.raw.get("clusterResources"):
        tell("Loading Kubernetes resources ...")
    world = load_world(test.paths("clusterResources"), registry=registry)
    tell("  Loading exceptions ...")
    exceptions = load_exceptions(test.paths("exceptions"))
    compiled = compile_all(policies.documents, exceptions)
    tell(_applying(len(policies.documents), len(resources), len(exceptions)))
    evaluator = Evaluator(
        compiled.policies, values=values, user=user, world=world, clock=clock()
    )
    responses: dict[_Key, list[Response]] = {}
    for resource in resources:
        responses.setdefault(_key(resource), []).extend(evaluator.apply(resource))
    tell("  Checking results ...")
    invalid = {name for name, _ in compiled.invalid}
    return _compare(test, responses, invalid, policies)


def _silent(_text: str) -> None:
    """Take the place of echo where nothing is to be printed."""


def _applying(policies: int, resources: int, exceptions: int) -> str:
    def count(number: int, one: str, many: str) -> str:
        return f"{number} {one if number == 1 else many}"

    return (
        f"  Applying {count(policies, 'policy', 'policies')} to"
        f" {count(resources, 'resource', 'resources')} with"
        f" {count(exceptions, 'exception', 'exceptions')} ..."
    )


def _values(test: TestFile) -> Values:
    if test.raw.get("values"):
        return values_from(test.raw["values"], str(test.path))
    if test.raw.get("variables"):
        return load_values(test.folder / test.raw["variables"])
    return Values()


def _user(test: TestFile, tell: object) -> UserInfo | None:
    if not test.raw.get("userinfo"):
        return None
    assert callable(tell)
    tell("  Loading user infos ...")
    user = load_user_info(test.folder / test.raw["userinfo"])
    if user.deprecated:
        raise CommandFailed(
            f"user infos file {test.raw['userinfo']} uses a deprecated schema — please"
            " migrate to the latest format"
        )
    return user


def _resources(test: TestFile, tell: object) -> list[dict[str, Json]]:
    assert callable(tell)
    found: dict[tuple[str, str, str, str], dict[str, Json]] = {}
    for path in test.paths("resources"):
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from error
        for raw in parse(data, path):
            api_version, kind, namespace, name = _key(raw)
            key = (api_version.rpartition("/")[0], kind, namespace, name)
            if key in found:
                tell(f"  warning: found duplicated resource {kind} {name} {namespace}")
            else:
                found[key] = raw
    return list(found.values())


def _key(raw: dict[str, Json]) -> _Key:
    metadata = raw.get("metadata") or {}
    return (
        str(raw.get("apiVersion", "")),
        str(raw.get("kind", "")),
        str(metadata.get("namespace", "")),
        str(metadata.get("name", "")),
    )


def _selected(expected: Expected, keys: Sequence[_Key]) -> list[_Key]:
    """Return the keys that a result speaks of; all when none matches (cli.md 15)."""
    found: list[_Key] = []
    for name in expected.resources or []:
        namespace, slash, bare = name.partition("/")
        if slash and "/" in bare:
            continue
        found.extend(
            key
            for key in keys
            if (key[2:] == (namespace, bare) if slash else key[3] == name)
        )
    for spec in expected.resource_specs if expected.resources is not None else []:
        group, version = spec.get("group", ""), spec.get("version", "")
        api_version = f"{group}/{version}" if group else version
        wanted = (api_version, spec.get("namespace", ""), spec.get("name", ""))
        found.extend(key for key in keys if (key[0], key[2], key[3]) == wanted)
    return found or list(keys)


def _compare(
    test: TestFile,
    responses: dict[_Key, list[Response]],
    invalid: set[str],
    policies: PolicySet,
) -> TestRun:
    del policies
    run = TestRun()
    for expected in test.results:
        before = len(run.rows)
        for key in _selected(expected, list(responses)):
            _compare_key(run, expected, key, responses[key])
        if len(run.rows) > before:
            continue
        missing = expected.policy_name in invalid
        resource = ",".join(expected.resources or [])
        run.rows.append(
            Row(
                len(run.rows) + 1,
                expected.policy,
                expected.rule,
                resource,
                "Skip" if missing else "Fail",
                "Invalid Policy" if missing else "Not found",
                "" if missing else "Not found",
                is_failure=not missing,
            )
        )
        if missing:
            run.skipped += 1
        else:
            run.failed += 1
    return run


def _compare_key(
    run: TestRun, expected: Expected, key: _Key, responses: list[Response]
) -> None:
    names = {
        expected.rule,
        f"autogen-{expected.rule}",
        f"autogen-cronjob-{expected.rule}",
    }
    found = False
    known = False
    for response in responses:
        if response.policy.name != expected.policy_name:
            continue
        known = True
        for rule in response.results:
            if expected.rule and rule.rule not in names:
                continue
            found = True
            _add_row(run, expected, key, response, rule)
    if known and not found:
        run.skipped += 1
        run.rows.append(
            Row(
                len(run.rows) + 1,
                expected.policy,
                expected.rule,
                "/".join(key),
                "Pass",
                "Excluded",
                "Excluded",
            )
        )


def _add_row(
    run: TestRun, expected: Expected, key: _Key, response: Response, rule: RuleResult
) -> None:
    word = report_word(response, rule, audit_warn=False)
    good = word == expected.result
    run.rows.append(
        Row(
            len(run.rows) + 1,
            expected.policy,
            rule.rule,
            "/".join(key),
            "Pass" if good else "Fail",
            "Ok" if good else f"Want {expected.result}, got {word}",
            rule.message,
            is_failure=not good,
        )
    )
    if not good:
        run.failed += 1
    elif expected.result == "skip":
        run.skipped += 1
    else:
        run.passed += 1


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


def run(options: Options) -> int:
    """Run all tests below the folders and print; raises CommandFailed."""
    if options.output_format not in ("", *_FORMATS):
        raise CommandFailed("invalid format, expected (json, yaml, markdown, junit)")
    selector = Selector(options.test_case_selector)
    if selector.problems:
        click.echo("\nFilter errors:")
        for problem in selector.problems:
            click.echo(f"  Error: {problem}")
    tests = _load(options)
    if not tests:
        if options.require_tests:
            raise CommandFailed("no tests found")
        click.echo("\nNo test yamls available\n")
        return 0
    runs = []
    for test in tests:
        test.results = [e for e in test.results if selector.keeps(e)]
        if not test.results:
            continue
        outcome = run_test(test, say=True, registry=options.registry)
        runs.append(outcome)
        if not options.fail_only:
            _print_rows(outcome.rows, options)
    return _summary(runs, options)


def _load(options: Options) -> list[TestFile]:
    tests: list[TestFile] = []
    errors: list[tuple[Path, str]] = []
    for path in discover(options.folders, options.file_name):
        try:
            tests.extend(read_tests(path))
        except CommandFailed as error:
            if "deprecated schema" in error.message:
                raise
            errors.append((path, error.message))
    if errors:
        click.echo("\nTest errors:")
        for path, message in errors:
            click.echo(f"  Path: {path}\n    Error: {message}")
        raise CommandFailed(f"found {len(errors)} errors after loading tests")
    return tests


def _summary(runs: list[TestRun], options: Options) -> int:
    good = sum(r.passed + r.skipped for r in runs)
    bad = sum(r.failed for r in runs)
    if options.fail_only:
        click.echo(f"\nTest Summary: {bad} out of {good + bad} tests failed\n")
    else:
        click.echo(f"\nTest Summary: {good} tests passed and {bad} tests failed\n")
    if not bad:
        return 0
    if options.fail_only:
        click.echo("Aggregated Failed Test Cases : ")
        failures = [row for r in runs for row in r.rows if row.is_failure]
        for number, row in enumerate(failures, 1):
            row.number = number
        _print_rows(failures, options)
    raise CommandFailed(f"{bad} tests failed")


def _print_rows(rows: list[Row], options: Options) -> None:
    detailed = options.detailed_results
    if options.output_format in ("json", "yaml"):
        names = headers(detailed=False)
        data = []
        for row in rows:
            item = dict(zip(names, row.cells(detailed=False), strict=True))
            if detailed:
                item["Message"] = row.message
            data.append(item)
        if options.output_format == "json":
            click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        else:
            click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    elif options.output_format == "markdown":
        names = headers(detailed=detailed)
        click.echo("| " + " | ".join(names) + " | ")
        click.echo("|" + "---|" * len(names))
        for row in rows:
            click.echo("| " + " | ".join(row.cells(detailed=detailed)) + " |")
    elif options.output_format == "junit":
        click.echo(_junit(rows, detailed=detailed))
    else:
        color = sys.stdout.isatty() and not options.remove_color
        click.echo()
        click.echo(render_table(rows, detailed=detailed, color=color))


def _junit(rows: list[Row], *, detailed: bool) -> str:
    """Return well-formed JUnit XML, unlike upstream's (cli.md 15)."""
    suites: dict[str, list[Row]] = {}
    for row in rows:
        suites.setdefault(row.policy, []).append(row)
    failures = sum(row.is_failure for row in rows)
    lines = [f'<testsuites tests="{len(rows)}" failures="{failures}">']
    for policy, members in suites.items():
        bad = sum(row.is_failure for row in members)
        lines.append(
            f'  <testsuite name={quoteattr(policy)} tests="{len(members)}"'
            f' failures="{bad}">'
        )
        for row in members:
            head = (
                f"    <testcase classname={quoteattr(row.rule)}"
                f" name={quoteattr(row.resource)}"
            )
            if row.is_failure:
                text = escape(row.message) if detailed else ""
                reason = quoteattr(row.reason)
                lines.append(
                    f"{head}><failure message={reason}>{text}</failure></testcase>"
                )
            else:
                lines.append(f"{head}/>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"])


def _callback(folders: tuple[str, ...], **flags: object) -> int:
    if not folders:
        raise CommandFailed("requires at least 1 arg(s), only received 0")
    return run(Options(folders=folders, **flags))  # type: ignore[arg-type]  # click checked the types


command = click.Command(
    "test",
    callback=_callback,
    params=[
        click.Argument(["folders"], nargs=-1),
        click.Option(["-f", "--file-name"], default="kyverno-test.yaml"),
        click.Option(
            ["-t", "--test-case-selector"], default="policy=*,rule=*,resource=*"
        ),
        click.Option(["-o", "--output-format"], default=""),
        click.Option(["--registry"], is_flag=True),
        click.Option(["--fail-only"], is_flag=True),
        click.Option(["--remove-color"], is_flag=True),
        click.Option(["--detailed-results"], is_flag=True),
        click.Option(["--require-tests"], is_flag=True),
    ],
    help="Runs the tests of kyverno-test.yaml files.",
)
