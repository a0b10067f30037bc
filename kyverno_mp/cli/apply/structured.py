"""Print the results of ``apply`` as SARIF, annotations, JUnit, TAP or markdown.

Room: cli. Takes: Responses with their locations, Counts. Gives: one text.
Next: cli/output/sarif, cli/output/github, cli/output/junit, cli/output/tap.
May touch: the files of the objects (for the lines of findings).
Source: docs/behaviour/cli 10.
"""

import re
from collections.abc import Iterator

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Response, resource_path
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.words import LocatedResponses, result_word
from kyverno_mp.cli.output import github, junit, sarif, tap
from kyverno_mp.cli.sources.positions import Positions
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.cli.sources.resources import Location
from kyverno_mp.program.result import RuleResult

_PATH_IN_WORDS = re.compile(r"(?:at path|path:) (/[^ ,]+)")  # in our own messages


def render_structured(
    located: LocatedResponses, counts: Counts, options: Options
) -> str:
    """Return all results as one document; raises OSError."""
    warn = options.audit_warn
    if options.output_format == "sarif":
        findings, explained = _findings(located, audit_warn=warn)
        return sarif.render(findings, explained)
    if options.output_format == "github":
        return github.render(_findings(located, audit_warn=warn)[0])
    if options.output_format == "junit":
        cases = _cases(located, audit_warn=warn)
        return junit.render(cases, declaration=True) + "\n"
    if options.output_format == "tap":
        return tap.render(_cases(located, audit_warn=warn))
    return _markdown(located, counts, audit_warn=warn)


def _with_words(
    located: LocatedResponses, *, audit_warn: bool
) -> Iterator[tuple[Response, Location, RuleResult, str]]:
    for response, location in located:
        for rule in response.results:
            word = result_word(response, rule, audit_warn=audit_warn)
            yield response, location, rule, word


def _findings(
    located: LocatedResponses, *, audit_warn: bool
) -> tuple[list[sarif.Finding], dict[str, sarif.Explained]]:
    """Return failures, warnings and errors, with the field's line if it is known."""
    levels = {"Fail": sarif.ERROR, "Error": sarif.ERROR, "Warn": sarif.WARNING}
    positions: dict[str, Positions] = {}
    explained: dict[str, sarif.Explained] = {}
    findings = []
    for response, location, rule, word in _with_words(located, audit_warn=audit_warn):
        if word not in levels:
            continue
        if location.file not in positions:
            positions[location.file] = Positions(_text_of(location.file))
        path = _PATH_IN_WORDS.search(rule.message)
        line, column = positions[location.file].locate(
            location.index, _field_path(path[1]) if path else "", item=location.item
        )
        policy = response.policy
        code = f"{policy.written_key}/{rule.rule}"
        explained[code] = sarif.Explained(
            f"Rule {rule.rule} of policy {policy.written_key}",
            policy.severity,
            policy.category,
        )
        findings.append(
            sarif.Finding(
                code,
                levels[word],
                rule.message,
                location.file,
                line or location.line,
                column,
                resource_path(response.resource),
            )
        )
    return findings, explained


def _field_path(path: str) -> str:
    """Turn ``/spec/containers/0/`` into ``spec.containers[0]``."""
    dotted = ""
    for part in path.strip("/.").split("/"):
        dotted += f"[{part}]" if part.isdigit() else f".{part}"
    return dotted.removeprefix(".")


def _cases(located: LocatedResponses, *, audit_warn: bool) -> list[junit.Case]:
    """Return a suite for each policy and a case for each result; warnings pass."""
    outcomes = {"Fail": junit.FAILURE, "Error": junit.ERROR, "Skip": junit.SKIPPED}
    cases = []
    for response, _ in located:
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
    return cases


def _markdown(located: LocatedResponses, counts: Counts, *, audit_warn: bool) -> str:
    """Return the counts and a table of results other than pass and skip."""
    lines = [
        "| Policy | Rule | Resource | Result | Message |",
        "|---|---|---|---|---|",
    ]
    for response, _location, rule, word in _with_words(located, audit_warn=audit_warn):
        if word in ("Pass", "Skip"):
            continue
        path = resource_path(response.resource)
        cells = (response.policy.written_key, rule.rule, path, word, rule.message)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n" + counts.summary()


def _cell(content: str) -> str:
    """Escape text for one table cell. SAFETY: a message may quote an object."""
    plain = content.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _text_of(file: str) -> bytes:
    """Return a file's text; objects of a cluster or of a pipe have no lines."""
    try:
        return b"" if file in ("-", "") else read_file(file)
    except OSError:
        return b""
