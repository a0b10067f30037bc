"""Write the results of reports for programs: JSON, SARIF or JUnit.

Room: cli. Takes: Entries. Gives: one text. Next: cli/output/sarif, cli/output/junit.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from kyverno_mp.cli.output import junit, sarif
from kyverno_mp.dashboard.entries import Entry, groups, total
from kyverno_mp.values.jsonvalue import Json

_LEVELS: Final = {"fail": sarif.ERROR, "error": sarif.ERROR, "warn": sarif.WARNING}
_OUTCOMES: Final = {"fail": junit.FAILURE, "error": junit.ERROR, "skip": junit.SKIPPED}


def as_json(entries: Sequence[Entry], dimension: str) -> str:
    """Return counts, groups and all results.

    Shape: ``{"summary": {"fail": 1, ...}, "groupBy": "policy", "groups": [{"name":
    "p", "fail": 1, ...}], "results": [{"policy": "p", "result": "fail", ...}]}``.
    """
    listed: list[Json] = [
        {"name": group.name, **group.counts.of} for group in groups(entries, dimension)
    ]
    document = {
        "summary": total(entries).of,
        "groupBy": dimension,
        "groups": listed,
        "results": [_result(entry) for entry in entries],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _result(entry: Entry) -> dict[str, Json]:
    facts = asdict(entry)
    stamp = facts.pop("timestamp_s")
    fields = {key: value for key, value in facts.items() if value}
    return {**fields, "timestamp": stamp} if stamp else fields


def as_sarif(entries: Sequence[Entry]) -> str:
    """Return failures, errors and warnings."""
    explained: dict[str, sarif.Explained] = {}
    findings = []
    for entry in entries:
        if entry.result not in _LEVELS:
            continue
        code = f"{entry.policy}/{entry.rule}"
        description = f"Rule {entry.rule} of policy {entry.policy}"
        explained[code] = sarif.Explained(description, entry.severity, entry.category)
        level = _LEVELS[entry.result]
        findings.append(sarif.Finding(code, level, entry.message, subject=entry.path))
    return sarif.render(findings, explained)


def as_junit(entries: Sequence[Entry]) -> str:
    """Return a suite for each policy and a case for each result; warnings pass."""
    cases = []
    for entry in entries:
        outcome = _OUTCOMES.get(entry.result, "")
        reason = entry.message if outcome else ""
        cases.append(
            junit.Case(entry.policy, entry.rule, entry.path, outcome, reason, reason)
        )
    return junit.render(cases, declaration=True) + "\n"
