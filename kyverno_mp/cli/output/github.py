"""Write findings as workflow commands, which GitHub shows as annotations of lines.

Room: cli. Takes: Findings. Gives: a line of text for each. Next: lint, apply, testing.
May touch: the name of the working directory.
Source: GitHub, "Workflow commands for GitHub Actions" (error, warning, notice);
actions/toolkit, packages/core/src/command.ts (escapes of messages and properties).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kyverno_mp.cli.output.sarif import ERROR, NOTE, WARNING, Finding
from kyverno_mp.cli.output.screen import Safe, without_controls

_COMMANDS: Final = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
_OF_MESSAGES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_OF_PROPERTIES: Final = {**_OF_MESSAGES, ord(":"): "%3A", ord(","): "%2C"}


def render(findings: Iterable[Finding]) -> Safe:
    """Return one annotation per finding; GitHub's runner prints other lines as text."""
    return Safe("".join(_annotation(finding) for finding in findings))


def _annotation(finding: Finding) -> str:
    file = _relative(finding.file)
    # A line number is useless without its file.
    properties = {
        "file": file,
        "line": str(finding.line or "") if file else "",
        "col": str(finding.column or "") if file else "",
        "title": finding.code,
    }
    listed = ",".join(
        f"{name}={value.translate(_OF_PROPERTIES)}"
        for name, value in properties.items()
        if value
    )
    subject = f" ({finding.subject})" if finding.subject else ""
    message = f"{finding.message or finding.code}{subject}".translate(_OF_MESSAGES)
    return without_controls(f"::{_COMMANDS[finding.level]} {listed}::{message}") + "\n"


def _relative(file: str) -> str:
    """Return the path relative to the root of the repository, as GitHub expects."""
    if file in ("", "-"):
        return ""
    path, root = Path(file), Path.cwd()
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
