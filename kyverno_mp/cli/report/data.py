"""Write the results of reports for programs: JSON, SARIF or JUnit.

Room: cli. Takes: Entries. Gives: one text. Next: cli/output/sarif, cli/output/junit.
May touch: nothing outside its arguments.
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
        {"name": one.name, **one.counts.of} for one in groups(entries, dimension)
    ]
    found = {
        "summary": total(entries).of,
        "groupBy": dimension,
        "groups": listed,
        "results": [_result(one) for one in entries],
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _result(entry: Entry) -> dict[str, Json]:
    facts = asdict(entry)
    stamp = facts.pop("timestamp_s")
    found = {key: value for key, value in facts.items() if value}
    return {**found, "timestamp": stamp} if stamp else found


def as_sarif(entries: Sequence[Entry]) -> str:
    """Return failures, errors and warnings."""
    known: dict[str, sarif.Explained] = {}
    findings = []
    for one in entries:
        if one.result not in _LEVELS:
            continue
        code = f"{one.policy}/{one.rule}"
        text = f"Rule {one.rule} of policy {one.policy}"
        known[code] = sarif.Explained(text, one.severity, one.category)
        level = _LEVELS[one.result]
        findings.append(sarif.Finding(code, level, one.message, subject=one.path))
    return sarif.render(findings, known)


def as_junit(entries: Sequence[Entry]) -> str:
    """Return a suite for each policy and a case for each result; warnings pass."""
    cases = []
    for one in entries:
        outcome = _OUTCOMES.get(one.result, "")
        reason = one.message if outcome else ""
        cases.append(
            junit.Case(one.policy, one.rule, one.path, outcome, reason, reason)
        )
    return junit.render(cases, declaration=True) + "\n"
