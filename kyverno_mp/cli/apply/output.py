"""Print the results of ``apply``: text, table, reports, SARIF, JUnit, markdown.

Room: cli. Takes: Responses with their places, Counts. Gives: text on standard output.
Next: none. May touch: standard output, the files of the objects (for SARIF's lines).
Source: docs/behaviour/cli 10.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Response, resource_path
from kyverno_mp.cli.apply.mutated import (
    DONE,
    GENERATED,
    MutatedFiles,
    generated_of,
    generated_text,
    mutated_text,
)
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.output.table import Row
from kyverno_mp.cli.output.table import render as render_table
from kyverno_mp.cli.sources.resources import Place
from kyverno_mp.program import result
from kyverno_mp.program.result import RuleResult

_PATH_IN_WORDS = re.compile(r"(?:at path|path:) (/[^ ,]+)")  # in our own messages
_RULED = ("ClusterPolicy", "Policy")
Placed = Sequence[tuple[Response, Place]]


def needs_words(options: Options) -> bool:
    """Return whether the output shows messages of rules that pass or are skipped."""
    return options.policy_report or options.table


def needs_response(response: Response, options: Options) -> bool:
    """Return whether the output shows the response; JUnit shows all names."""
    return (
        bool(response.results)
        or response.patched is not None
        or (options.is_structured and options.output_format == "junit")
    )


def print_responses(placed: Placed, counts: Counts, options: Options) -> None:
    """Print the responses in the format that the flags select."""
    responses = [response for response, _ in placed]
    warn = options.audit_warn
    if options.policy_report:
        # Reports, SARIF and exceptions are imported by the runs that print them.
        from kyverno_mp.cli.apply.report import build_reports, render

        reports = build_reports(responses, now=datetime.now(UTC), audit_warn=warn)
        text = render(reports, options.output_format)
    elif options.generate_exceptions:
        from kyverno_mp.cli.apply.generated_exceptions import render_exceptions

        text = render_exceptions(
            responses,
            audit_warn=warn,
            ttl=options.generated_exception_ttl,
            output_format=options.output_format,
        )
    elif options.is_structured:
        text = _structured(placed, counts, options)
    elif options.table:
        color = sys.stdout.isatty() and not options.remove_color
        text = render_table(
            _rows(responses, audit_warn=warn),
            detailed=options.detailed_results,
            color=color,
        )
    else:
        text = "".join(_mutations(r) + _failures(r, audit_warn=warn) for r in responses)
        text += counts.summary()
    sys.stdout.write(text)


def print_objects(responses: Sequence[Response], options: Options) -> None:
    """Print mutated and generated objects, in addition to the other output.

    Our own formats and exceptions are data, so this text is not part of them; reports
    follow the objects, as upstream's do, unless the objects go to files.
    """
    files = MutatedFiles(options.output) if options.output else None
    stdin = options.stdin
    for response in responses:
        text = ""
        if response.patched is not None:
            text = mutated_text(response, stdin=stdin) if files is None else DONE
            if files is not None:
                files.write(response)
        made = len(generated_of(response))
        if made:
            told = generated_text(response, stdin=stdin)
            text += told if files is None else GENERATED * made
            if files is not None:
                files.write_generated(response)
        if not options.is_structured:
            is_apart = options.generate_exceptions or files is not None
            (sys.stderr if options.is_quiet and is_apart else sys.stdout).write(text)


def _mutations(response: Response) -> str:
    """Return the lines of mutate rules that were skipped or failed."""
    policy, path = response.policy.name, resource_path(response.resource)
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
    path = resource_path(response.resource)
    lines = [f"policy {response.policy.name} -> resource {path} {label}"]
    lines.extend(
        f"{index} - {rule.rule} {rule.message or 'validation failed'}"
        for index, rule in enumerate(failed, 1)
    )
    return "\n".join(lines) + "\n"


def result_word(response: Response, rule: RuleResult, *, audit_warn: bool) -> str:
    """Return Pass, Fail, Warn, Error or Skip."""
    if rule.status == result.FAIL and (
        not response.policy.scored or (audit_warn and response.action == "Audit")
    ):
        return "Warn"
    word = rule.status.capitalize()
    return "Warn" if word == "Warning" else word


def _rows(responses: Sequence[Response], *, audit_warn: bool) -> list[Row]:
    rows: list[Row] = []
    for response in responses:
        for rule in response.results:
            rows.append(
                Row(
                    len(rows) + 1,
                    response.policy.written_key,
                    # KYVERNO: the column is for rules of Kyverno's own policies.
                    rule.rule if response.policy.kind in _RULED else "",
                    resource_path(response.resource),
                    result_word(response, rule, audit_warn=audit_warn),
                    message=rule.message,
                )
            )
    return rows


def _structured(placed: Placed, counts: Counts, options: Options) -> str:
    if options.output_format == "sarif":
        return _sarif(placed, audit_warn=options.audit_warn)
    if options.output_format == "junit":
        return _junit(placed, audit_warn=options.audit_warn)
    return _markdown(placed, counts, audit_warn=options.audit_warn)


def _worded(
    placed: Placed, *, audit_warn: bool
) -> Iterator[tuple[Response, Place, RuleResult, str]]:
    for response, place in placed:
        for rule in response.results:
            word = result_word(response, rule, audit_warn=audit_warn)
            yield response, place, rule, word


def _sarif(placed: Placed, *, audit_warn: bool) -> str:
    """Return failures, warnings and errors, with the field's line if it is known."""
    from kyverno_mp.cli.output import sarif
    from kyverno_mp.cli.sources.positions import Positions

    levels = {"Fail": sarif.ERROR, "Error": sarif.ERROR, "Warn": sarif.WARNING}
    positions: dict[str, Positions] = {}
    known: dict[str, sarif.Explained] = {}
    findings = []
    for response, place, rule, word in _worded(placed, audit_warn=audit_warn):
        if word not in levels:
            continue
        if place.file not in positions:
            # No place: objects of a cluster.
            no_file = place.file in ("-", "")
            text = b"" if no_file else Path(place.file).read_bytes()
            positions[place.file] = Positions(text)
        told = _PATH_IN_WORDS.search(rule.message)
        line, column = positions[place.file].locate(
            place.index, _field_path(told[1]) if told else "", item=place.item
        )
        policy = response.policy
        code = f"{policy.written_key}/{rule.rule}"
        known[code] = sarif.Explained(
            f"Rule {rule.rule} of policy {policy.written_key}",
            policy.severity,
            policy.category,
        )
        findings.append(
            sarif.Finding(
                code,
                levels[word],
                rule.message,
                place.file,
                line or place.line,
                column,
                resource_path(response.resource),
            )
        )
    return sarif.render(findings, known)


def _field_path(path: str) -> str:
    """Turn ``/spec/containers/0/`` into ``spec.containers[0]``."""
    text = ""
    for part in path.strip("/.").split("/"):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text.removeprefix(".")


def _junit(placed: Placed, *, audit_warn: bool) -> str:
    """Return a suite for each policy and a case for each result; warnings pass."""
    from kyverno_mp.cli.output import junit

    outcomes = {"Fail": junit.FAILURE, "Error": junit.ERROR, "Skip": junit.SKIPPED}
    cases = []
    for response, _ in placed:
        suite, name = response.policy.written_key, resource_path(response.resource)
        for rule in response.results:
            word = result_word(response, rule, audit_warn=audit_warn)
            outcome = outcomes.get(word, "")
            reason = rule.message if outcome else ""
            cases.append(junit.Case(suite, rule.rule, name, outcome, reason, reason))
        cases += [junit.Case(suite, rule, name) for rule in response.passed]
        cases += [
            junit.Case(suite, rule, name, junit.SKIPPED) for rule in response.skipped
        ]
    return junit.render(cases, declaration=True) + "\n"


def _markdown(placed: Placed, counts: Counts, *, audit_warn: bool) -> str:
    """Return the counts and a table of results other than pass and skip."""
    lines = [
        "| Policy | Rule | Resource | Result | Message |",
        "|---|---|---|---|---|",
    ]
    for response, _place, rule, word in _worded(placed, audit_warn=audit_warn):
        if word in ("Pass", "Skip"):
            continue
        path = resource_path(response.resource)
        cells = (response.policy.written_key, rule.rule, path, word, rule.message)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n" + counts.summary()


def _cell(text: str) -> str:
    """Return a text as one cell. SAFETY: a message may quote an object."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
