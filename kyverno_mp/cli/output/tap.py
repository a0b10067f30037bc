"""Write cases as TAP 14, the Test Anything Protocol.

Room: cli. Takes: Cases. Gives: one text. Next: cli/testing/output, cli/apply/output.
Source: https://testanything.org/tap-version-14-specification.html (plan, escapes of
descriptions, directives, YAML diagnostics).
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.cli.output.junit import SKIPPED, Case

_UNPRINTED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
"""Characters that JSON strings allow and YAML does not."""
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def render(cases: Iterable[Case]) -> str:
    """Return the version, the plan and a test point for each case."""
    points = [
        line for number, case in enumerate(cases, 1) for line in _point(number, case)
    ]
    count = sum(not line.startswith(" ") for line in points)
    return "\n".join(["TAP version 14", f"1..{count}", *points]) + "\n"


def _point(number: int, case: Case) -> Iterator[str]:
    is_skipped = case.outcome == SKIPPED
    word = "ok" if is_skipped or not case.outcome else "not ok"
    name = " ".join(part for part in (case.suite, case.classname, case.name) if part)
    line = f"{word} {number} - {_described(name)}"
    if is_skipped:
        reason = f" {_described(case.reason)}" if case.reason else ""
        yield f"{line} # SKIP{reason}"
        return
    yield line
    if case.outcome:
        yield "  ---"
        yield f"  message: {_quoted(case.reason or case.details)}"
        yield f"  severity: {_quoted(case.outcome)}"
        if case.details and case.details != case.reason:
            yield f"  diagnostics: {_quoted(case.details)}"
        yield "  ..."


def _described(description: str) -> str:
    """Return the text on one line, with characters that begin a directive escaped."""
    plain = _BREAKS.sub(" ", description)
    return plain.replace("\\", "\\\\").replace("#", "\\#")


def _quoted(string: str) -> str:
    """Return a JSON string with escapes for characters that YAML does not allow."""
    escaped = json.dumps(string, ensure_ascii=False)
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped)
