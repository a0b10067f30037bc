"""Write findings as SARIF 2.1.0, which code hosts show next to the changed lines.

Room: cli. Takes: Findings and their rules. Gives: one JSON text.
Next: apply, testing, lint.
Source: OASIS SARIF 2.1.0, sections 3.13 (log), 3.14 (run), 3.27 (result), 3.49 (rule).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from kyverno_mp import __version__
from kyverno_mp.values.jsonvalue import Json

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
ERROR: Final = "error"
WARNING: Final = "warning"
NOTE: Final = "note"

_SCORES: Final = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "3.0"}
"""Severity annotation of Kyverno -> ``security-severity`` for code hosts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem at one position.

    ``level``: error, warning or note. ``file`` "" and ``line`` 0: unknown. ``subject``:
    a policy's field or an object (``ns/Kind/name``), independent of lines.
    """

    code: str
    level: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """The meaning of a code; ``severity`` as in Kyverno's annotation."""

    description: str = ""
    severity: str = ""
    category: str = ""


@dataclass(slots=True)
class _Rules:
    """The rules of a run in the order of their first finding."""

    explained: Mapping[str, Explained]
    index: dict[str, int] = field(default_factory=dict)
    entries: list[dict[str, Json]] = field(default_factory=list)

    def position(self, code: str) -> int:
        position = self.index.get(code)
        if position is None:
            position = self.index[code] = len(self.entries)
            self.entries.append(_rule(code, self.explained.get(code, Explained())))
        return position


def render(findings: Iterable[Finding], explained: Mapping[str, Explained]) -> str:
    """Return a SARIF log of one run, ending with a newline."""
    rules = _Rules(explained)
    results = [_result(finding, rules) for finding in findings]
    driver = {
        "name": "kyverno-mp",
        "version": __version__,
        "informationUri": "https://kyverno.io/docs/",
        "rules": rules.entries,
    }
    run: dict[str, Json] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rule(code: str, explained: Explained) -> dict[str, Json]:
    rule: dict[str, Json] = {"id": code}
    if explained.description:
        rule["shortDescription"] = {"text": explained.description}
    tags = [explained.category] if explained.category else []
    properties: dict[str, Json] = {"tags": tags} if tags else {}
    if explained.severity in _SCORES:
        properties["security-severity"] = _SCORES[explained.severity]
    if properties:
        rule["properties"] = properties
    return rule


def _result(finding: Finding, rules: _Rules) -> dict[str, Json]:
    location: dict[str, Json] = {}
    if finding.file:
        physical: dict[str, Json] = {"artifactLocation": {"uri": uri(finding.file)}}
        if finding.line:
            region = {"startLine": finding.line}
            if finding.column:
                region["startColumn"] = finding.column
            physical["region"] = region
        location["physicalLocation"] = physical
    elif finding.subject:
        # Code hosts reject a log with a result that has no artifact, so an object of a
        # cluster or of a report is one.
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(finding.subject.lstrip("/"))},
            "region": {"startLine": 1},
        }
    if finding.subject:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.subject}]
    result: dict[str, Json] = {
        "ruleId": finding.code,
        "ruleIndex": rules.position(finding.code),
        "level": finding.level,
        "message": {"text": finding.message or finding.code},
        "partialFingerprints": {"kyvernoMp/v1": _fingerprint(finding)},
    }
    if location:
        result["locations"] = [location]
    return result


def uri(file: str) -> str:
    """Return the path as a URI; relative paths stay relative, even "-"."""
    path = PurePath(file)
    if path.is_absolute():
        return path.as_uri()
    return quote(path.as_posix())


def _fingerprint(finding: Finding) -> str:
    """Return a fingerprint without the line, so that edits above do not change it."""
    parts: Sequence[str] = (
        finding.code,
        finding.file,
        finding.subject,
        finding.message,
    )
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
