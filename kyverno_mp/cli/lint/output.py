"""Print findings as text, JSON, SARIF or annotations.

Room: cli. Takes: Findings. Gives: text. Next: cli/output/sarif, cli/output/github.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from kyverno_mp.cli.lint.checks import CODES
from kyverno_mp.cli.lint.corrected.report import CORRECTED
from kyverno_mp.cli.output import github, sarif
from kyverno_mp.cli.output.sarif import Explained, Finding
from kyverno_mp.cli.output.screen import one_line


def render(findings: Sequence[Finding], output: str) -> str:
    """Return the findings as text, json (a list of objects), sarif or github."""
    if output == "sarif":
        codes = CODES | CORRECTED
        return sarif.render(findings, {c: Explained(t) for c, t in codes.items()})
    if output == "json":
        return json.dumps([asdict(f) for f in findings], indent=2) + "\n"
    if output == "github":
        return github.render(findings)
    return _text(findings)


def _text(findings: Sequence[Finding]) -> str:
    """Return a line per finding; equal notes share a line with their count."""
    notes = Counter(
        _same(finding) for finding in findings if finding.level == sarif.NOTE
    )
    lines = []
    for finding in findings:
        if finding.level != sarif.NOTE:
            lines.append(_line(finding))
        elif count := notes.pop(_same(finding), 0):
            more = f" (and {count - 1} more)" if count > 1 else ""
            lines.append(_line(finding, more))
    errors = sum(finding.level == sarif.ERROR for finding in findings)
    warnings = sum(finding.level == sarif.WARNING for finding in findings)
    total = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    if len(findings) > errors + warnings:
        total += f", {_count(len(findings) - errors - warnings, 'note')}"
    return "\n".join([*lines, total]) + "\n"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _same(finding: Finding) -> tuple[str, ...]:
    if finding.code in CORRECTED:
        # Each policy is named.
        return finding.code, finding.message, finding.file, finding.subject
    return finding.code, finding.message


def _line(finding: Finding, more: str = "") -> str:
    subject = f" ({finding.subject})" if finding.subject and not more else ""
    position = f"{finding.file}:{finding.line}:{finding.column}"
    message = f"{finding.message}{more}{subject} [{finding.code}]"
    return one_line(f"{position}: {finding.level}: {message}")
