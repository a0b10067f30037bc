"""``apply``: what do these policies say of these objects?

Room: cli. Takes: the flags of upstream's apply. Gives: text, a table or reports on
standard output, and the exit code. Next: nobody.
May touch: files named by the user, standard input and output, the clock.
Source: spec/cli.md 2, 3, 9-13.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kyverno_mp.cli.counts import Counts
from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.evaluate import Evaluator, Response
from kyverno_mp.cli.policies import (
    Compiled,
    PolicySet,
    compile_all,
    load_exceptions,
    load_policies,
)
from kyverno_mp.cli.report import build_reports, render
from kyverno_mp.cli.resources import load_resources
from kyverno_mp.cli.table import Row
from kyverno_mp.cli.table import render as render_table
from kyverno_mp.cli.user_info import UserInfo, load_user_info
from kyverno_mp.cli.values_file import Values, load_values, parse_set
from kyverno_mp.cli.world import load_world
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.decode import decode
from kyverno_mp.policy.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program import result
from kyverno_mp.program.engine import Clock
from kyverno_mp.program.ports import World
from kyverno_mp.values.jsonvalue import Json

_DIVIDER = "-" * 70


def clock() -> Clock:
    """Return the real clocks."""
    return Clock(
        now=lambda: datetime.now(UTC).astimezone(), monotonic_ns=time.monotonic_ns
    )


@dataclass(slots=True)
class Options:
    """The flags of ``apply`` after splitting comma lists."""

    policies: tuple[str, ...]
    resources: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    exceptions_with_resources: bool = False
    exceptions_within_policies: bool = False
    user_info: str = ""
    set_values: tuple[str, ...] = ()
    values_file: str = ""
    policy_report: bool = False
    output_format: str = "yaml"
    stdin: bool = False
    registry: bool = False
    audit_warn: bool = False
    warn_exit_code: int = 0
    warn_no_pass: bool = False
    remove_color: bool = False
    detailed_results: bool = False
    table: bool = False


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(",") if part)


def _check(options: Options) -> None:
    """Refuse contradictory arguments, in upstream's order and words."""
    if options.values_file and options.set_values:
        raise CommandFailed("pass the values either using set flag or values_file flag")
    if not options.policies:
        raise CommandFailed("require policy")
    if options.policies[0] == "-" and options.resources[:1] == ("-",):
        raise CommandFailed(
            "a stdin pipe can be used for either policies or resources, not both"
        )
    if not options.resources:
        raise CommandFailed("resource file(s) or cluster required")


def run(options: Options) -> int:
    """Run ``apply`` and print; returns the exit code."""
    _check(options)
    user = _user(options)
    values = load_values(Path(options.values_file)) if options.values_file else Values()
    values.set_values = parse_set(options.set_values)
    policies = load_policies(options.policies)
    _tell_failed_paths(policies)
    resources = load_resources(options.resources, quiet=options.policy_report)
    exceptions = _exceptions(options, policies, resources)
    compiled = compile_all(policies.documents, exceptions)
    quiet = options.policy_report or options.stdin
    if not quiet:
        _banner(policies, compiled, resources, exceptions)
    world = load_world((), registry=options.registry)
    responses = _evaluate(compiled, resources, values, user, world)
    _tell_invalid(compiled)
    counts = Counts(errors=len(compiled.invalid))
    for response in responses:
        counts.add(response, audit_warn=options.audit_warn)
    _print(options, responses, counts)
    return _exit_code(options, counts, policies)


def _user(options: Options) -> UserInfo | None:
    return load_user_info(Path(options.user_info)) if options.user_info else None


def _tell_failed_paths(policies: PolicySet) -> None:
    for path, reason in policies.failed_paths:
        click.echo(f"policy path left out: {path}: {reason}", err=True)
    for name in policies.unsupported:
        click.echo(f"not evaluated by this version: {name}", err=True)


def _exceptions(
    options: Options, policies: PolicySet, resources: list[Json]
) -> list[PolicyException]:
    if options.exceptions_with_resources:
        found = []
        for raw in resources:
            if raw.get("kind") == "PolicyException" and str(
                raw.get("apiVersion", "")
            ).startswith("kyverno.io/"):
                decoded = decode(raw)
                assert isinstance(decoded, PolicyException)
                found.append(decoded)
        return found
    found = load_exceptions(options.exceptions)
    if options.exceptions_within_policies:
        found.extend(policies.exceptions)
    return found


def _banner(
    policies: PolicySet,
    compiled: Compiled,
    resources: list[Json],
    exceptions: list[PolicyException],
) -> None:
    rules = sum(len(policy.rules) for policy in compiled.policies)
    rules += len(policies.unsupported)
    tail = f" with {len(exceptions)} exception(s)" if exceptions else ""
    click.echo(
        f"\nApplying {rules} policy rule(s) to {len(resources)} resource(s){tail}..."
    )


def _evaluate(
    compiled: Compiled,
    resources: list[Json],
    values: Values,
    user: UserInfo | None,
    world: World,
) -> list[Response]:
    evaluator = Evaluator(
        compiled.policies, values=values, user=user, world=world, clock=clock()
    )
    return [r for resource in resources for r in evaluator.apply(resource)]


def _tell_invalid(compiled: Compiled) -> None:
    if not compiled.invalid:
        return
    # KYVERNO: which of the two headings depends on the text (cli.md 4).
    headings = {
        "Invalid Policies:": [],
        "Policies Skipped (as required variables are not provided by the user):": [],
    }  # type: dict[str, list[str]]
    names = list(headings)
    for name, error in compiled.invalid:
        invalid = _is_called_invalid(error)
        headings[names[0 if invalid else 1]].append(name)
        click.echo(f"policy {name}: {error.message}", err=True)
    for heading in reversed(names):
        if headings[heading]:
            click.echo(_DIVIDER)
            click.echo(heading)
            for index, name in enumerate(headings[heading], 1):
                click.echo(f"{index}. {name}")
            click.echo(_DIVIDER)


def _is_called_invalid(error: PolicyInvalid) -> bool:
    """Tell by the text that upstream gives, of which it gives the first only."""
    text = error.message
    if isinstance(error, DocumentInvalid):
        told = (one.upstream for one in error.problems if one.upstream)
        text = next(told, "")
    return text.startswith("variable 'element.name'")


def _print(options: Options, responses: list[Response], counts: Counts) -> None:
    if options.policy_report:
        reports = build_reports(
            responses, now=datetime.now(UTC), audit_warn=options.audit_warn
        )
        sys.stdout.write(render(reports, options.output_format))
    elif options.table:
        color = sys.stdout.isatty() and not options.remove_color
        rows = _rows(responses, audit_warn=options.audit_warn)
        sys.stdout.write(
            render_table(rows, detailed=options.detailed_results, color=color)
        )
    else:
        for response in responses:
            _print_failures(response, audit_warn=options.audit_warn)
        sys.stdout.write(counts.summary())


def resource_path(resource: dict[str, Json]) -> str:
    """Return ``<namespace>/<Kind>/<name>``."""
    metadata = resource.get("metadata") or {}
    return (
        f"{metadata.get('namespace', '')}/{resource.get('kind', '')}"
        f"/{metadata.get('name', '')}"
    )


def _print_failures(response: Response, *, audit_warn: bool) -> None:
    failed = [r for r in response.results if r.status == result.FAIL]
    if not failed:
        return
    warned = audit_warn and response.action == "Audit"
    label = "failed as audit warning:" if warned else "failed:"
    path = resource_path(response.resource)
    lines = [f"policy {response.policy.key} -> resource {path} {label}"]
    lines.extend(
        f"{index} - {rule.rule} {rule.message or 'validation failed'}"
        for index, rule in enumerate(failed, 1)
    )
    sys.stdout.write("\n".join(lines) + "\n")


def _rows(responses: list[Response], *, audit_warn: bool) -> list[Row]:
    rows: list[Row] = []
    for response in responses:
        for rule in response.results:
            word = rule.status.capitalize()
            if rule.status == result.FAIL and (
                not response.policy.scored
                or (audit_warn and response.action == "Audit")
            ):
                word = "Warn"
            rows.append(
                Row(
                    len(rows) + 1,
                    response.policy.key,
                    rule.rule,
                    resource_path(response.resource),
                    "Warn" if word == "Warning" else word,
                    message=rule.message,
                )
            )
    return rows


def _exit_code(options: Options, counts: Counts, policies: PolicySet) -> int:
    if counts.failed or counts.errors:
        return 1
    if policies.unsupported:
        raise CommandFailed(
            f"{len(policies.unsupported)} policies are of kinds that this version does"
            " not evaluate"
        )
    if counts.warned and options.warn_exit_code:
        sys.stdout.write(f"exit as warnExitCode is {options.warn_exit_code}")
        return options.warn_exit_code
    if not counts.passed and options.warn_no_pass:
        click.echo("exit as no objects satisfied policy")
        return options.warn_exit_code
    return 0


def _options() -> "list[click.Option]":
    many: dict[str, Any] = {"multiple": True, "type": str}
    flag: dict[str, Any] = {"is_flag": True}
    return [
        click.Option(["-r", "--resource", "--resources", "resources"], **many, help="Objects: files, one folder, or - for standard input."),
        click.Option(["-e", "--exception", "--exceptions", "exceptions"], **many, help="PolicyException files."),
        click.Option(["--exceptions-with-resources", "--exceptions-within-resources", "exceptions_with_resources"], **flag, help="Take exceptions from the resources."),
        click.Option(["--exceptions-within-policies"], **flag, help="Take exceptions from the policy files."),
        click.Option(["-u", "--userinfo", "user_info"], default="", help="UserInfo file."),
        click.Option(["-s", "--set", "set_values"], **many, help="Values, k=v."),
        click.Option(["-f", "--values-file"], default="", help="Values file."),
        click.Option(["-p", "--policy-report"], **flag, help="Print reports in place of text."),
        click.Option(["--output-format"], default="yaml", help="yaml or json, for reports."),
        click.Option(["-i", "--stdin"], **flag, help="Print no banner."),
        click.Option(["--registry"], **flag, help="Allow look-ups in registries."),
        click.Option(["--audit-warn"], **flag, help="Count failures of Audit policies as warnings."),
        click.Option(["--warn-exit-code"], default=0, type=int, help="Exit code when there are only warnings."),
        click.Option(["--warn-no-pass"], **flag, help="Use the warn exit code when nothing passed."),
        click.Option(["--remove-color"], **flag, help="Print without colours."),
        click.Option(["--detailed-results"], **flag, help="Add messages to the table."),
        click.Option(["-t", "--table"], **flag, help="Print a table."),
    ]  # fmt: skip


def _callback(policies: tuple[str, ...], **flags: object) -> int:
    for name in ("resources", "exceptions", "set_values"):
        given = flags[name]
        assert isinstance(given, tuple)
        flags[name] = _split(given)
    return run(Options(policies=_split(policies), **flags))  # type: ignore[arg-type]  # click checked the types


command = click.Command(
    "apply",
    callback=_callback,
    params=[click.Argument(["policies"], nargs=-1), *_options()],
    help="Applies policies on resources.",
)
