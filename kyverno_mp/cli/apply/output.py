"""Print the results of ``apply``: text, table, reports, and formats for programs.

Room: cli. Takes: Responses with their locations, Counts. Gives: standard output.
Next: structured. May touch: standard output.
Source: docs/behaviour/cli 10.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Response, resource_path
from kyverno_mp.cli.apply.mutated import (
    DONE,
    GENERATED,
    MutatedFiles,
    documents_of,
    generated_of,
    generated_text,
    mutated_text,
)
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.words import LocatedResponses, result_word
from kyverno_mp.cli.output.screen import has_colors, one_line, say
from kyverno_mp.cli.output.table import Row
from kyverno_mp.cli.output.table import render as render_table
from kyverno_mp.cli.sources.compiled import Compiled
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program import result
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLUSTER_POLICY,
    IMAGE_VALIDATING_POLICY,
)

_DIVIDER = "-" * 70
_RULED = CLUSTER_POLICY.names
_NAMING_ALL = ("junit", "tap")
_NO_CODE = "rule.error"
"""The code of an error whose cause has none."""


def needs_messages(options: Options) -> bool:
    """Return whether the output shows messages of passed and skipped rules."""
    return options.policy_report or options.table


def needs_response(response: Response, options: Options) -> bool:
    """Return whether the output shows the response; JUnit and TAP show all rules."""
    return (
        bool(response.results)
        or (
            options.policy_report
            and response.policy.kind in IMAGE_VALIDATING_POLICY.names
        )
        or response.patched is not None
        or (options.is_structured and options.output_format in _NAMING_ALL)
    )


def print_responses(
    located: LocatedResponses, counts: Counts, options: Options
) -> None:
    """Print the responses in the format that the flags select."""
    responses = [response for response, _ in located]
    warn = options.audit_warn
    if options.policy_report:
        # Formats are imported late: a run prints only one of them.
        from kyverno_mp.cli.apply.report import build_reports, render

        reports = build_reports(responses, now=datetime.now(UTC), audit_warn=warn)
        output = render(reports, options.output_format)
        objects = "" if options.output else documents_of(responses, as_json=False)
        if objects and not output.startswith("---") and not _is_json(options):
            output = f"---\n{output}"
    elif options.generate_exceptions:
        from kyverno_mp.cli.apply.generated_exceptions import render_exceptions

        output = render_exceptions(
            responses,
            audit_warn=warn,
            ttl=options.generated_exception_ttl,
            output_format=options.output_format,
        )
    elif options.is_structured:
        from kyverno_mp.cli.apply.structured import render_structured

        output = render_structured(located, counts, options)
    elif options.table:
        color = has_colors(is_removed=options.remove_color)
        output = render_table(
            _rows(responses, audit_warn=warn),
            detailed=options.detailed_results,
            color=color,
        )
    else:
        output = "".join(
            _mutations(r) + _failures(r, audit_warn=warn) for r in responses
        )
        output += counts.summary()
    sys.stdout.write(output)


def _is_json(options: Options) -> bool:
    return options.output_format == "json"


def print_objects(responses: Sequence[Response], options: Options) -> None:
    """Print mutated and generated objects, in addition to the other output.

    Our own formats and exceptions are data, so the objects are not printed with them.
    As in upstream, reports follow the objects, unless the objects are written to files.
    With reports, all of standard output can be read as documents, so nothing else is
    printed.
    """
    files = MutatedFiles(options.output) if options.output else None
    stdin = options.stdin
    if options.policy_report and files is None:
        sys.stdout.write(documents_of(responses, as_json=_is_json(options)))
        return
    for response in responses:
        printed = ""
        if response.patched is not None:
            printed = mutated_text(response, stdin=stdin) if files is None else DONE
            if files is not None:
                files.write(response)
        count = len(generated_of(response))
        if count:
            output = generated_text(response, stdin=stdin)
            printed += output if files is None else GENERATED * count
            if files is not None:
                files.write_generated(response)
        if not options.is_structured:
            is_apart = options.generate_exceptions or files is not None
            (sys.stderr if options.is_quiet and is_apart else sys.stdout).write(printed)


def print_errors(located: LocatedResponses) -> None:
    """Print one line on standard error for each result that is an error."""
    for response, _ in located:
        path = resource_path(response.resource).replace("//", "JSON payload")
        for rule in response.results:
            if rule.status == result.ERROR:
                name = f", rule {rule.rule}" if rule.rule else ""
                line = (
                    f"error: policy {response.policy.written_key}{name}, {path}:"
                    f" {rule.message} [{rule.code or _NO_CODE}]"
                )
                click.echo(line.replace("\r", "\\r").replace("\n", "\\n"), err=True)


def _mutations(response: Response) -> str:
    """Return the lines of mutate rules that were skipped or failed."""
    policy = one_line(response.policy.name)
    path = one_line(resource_path(response.resource))
    lines = []
    for rule in response.results:
        if rule.rule_type != result.MUTATION:
            continue
        if rule.status == result.SKIP:
            lines.append(f"\nskipped mutate policy {policy} -> resource {path}\n")
        elif rule.status == result.ERROR:
            lines.append(
                f"\nerror while applying mutate policy {policy} -> resource {path} "
                f"\nerror:  {rule.message}\n"
            )
    return "".join(lines)


def _failures(response: Response, *, audit_warn: bool) -> str:
    failed = [r for r in response.results if r.status == result.FAIL]
    if not failed:
        return ""
    warned = audit_warn and response.action == "Audit"
    label = "failed as audit warning:" if warned else "failed:"
    path = one_line(resource_path(response.resource).replace("//", "JSON payload"))
    policy = one_line(response.policy.name)
    lines = [f"policy {policy} -> resource {path} {label}"]
    lines.extend(
        f"{index} - {one_line(rule.rule)} {rule.message or 'validation failed'}"
        for index, rule in enumerate(failed, 1)
    )
    return "\n".join(lines) + "\n"


def _rows(responses: Sequence[Response], *, audit_warn: bool) -> list[Row]:
    rows: list[Row] = []
    for response in responses:
        for rule in response.results:
            rows.append(
                Row(
                    len(rows) + 1,
                    response.policy.written_key,
                    # KYVERNO: the column is empty for other kinds of policies.
                    rule.rule if response.policy.kind in _RULED else "",
                    resource_path(response.resource).removeprefix("/"),
                    result_word(response, rule, audit_warn=audit_warn),
                    message=rule.message,
                )
            )
    return rows


def print_invalid(compiled: Compiled, echo: Callable[[str], None]) -> None:
    """Print the policies that were left out, each with its reason."""
    if not compiled.invalid:
        return
    # KYVERNO: the error text selects one of the two headings (docs/behaviour/cli 4).
    # As in 1.19, each policy has its own reason.
    headings: dict[str, list[str]] = {"Invalid Policies:": [], "Policies Skipped:": []}
    names = list(headings)
    for name, error in compiled.invalid:
        invalid = _is_called_invalid(error)
        reason = one_line(error.message)
        headings[names[0 if invalid else 1]].append(f"{one_line(name)}: {reason}")
        say(f"policy {name}: {error.message}", err=True)
    for heading in reversed(names):
        if headings[heading]:
            echo(_DIVIDER)
            echo(heading)
            for index, line in enumerate(headings[heading], 1):
                echo(f"{index}. {line}")
            echo(_DIVIDER)


def _is_called_invalid(error: PolicyInvalid) -> bool:
    """Return whether upstream lists the policy as invalid, by its first message."""
    message = error.message
    if isinstance(error, DocumentInvalid):
        messages = (problem.upstream for problem in error.problems if problem.upstream)
        message = next(messages, "")
    return message.startswith("variable 'element.name'")
