"""Write cases as JUnit XML that is well-formed for all names.

Room: cli. Takes: Cases. Gives: one XML text. Next: cli/testing/command,
cli/apply/output.
Source: docs/behaviour/cli 15 (junit); the schema that CI servers accept (testsuites,
testsuite, testcase with failure, error or skipped).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from kyverno_mp.cli.output.screen import in_markup

FAILURE: Final = "failure"
ERROR: Final = "error"
SKIPPED: Final = "skipped"

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test case; ``outcome`` is "" if it passed."""

    suite: str
    classname: str
    name: str
    outcome: str = ""
    reason: str = ""
    details: str = ""


def render(cases: Iterable[Case], *, declaration: bool = False) -> str:
    """Return the XML without a final newline; suites are ordered by first case."""
    suites: dict[str, list[Case]] = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    every = [case for members in suites.values() for case in members]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>'] if declaration else []
    lines.append(f"<testsuites{_counts(every)}>")
    for name, members in suites.items():
        lines.append(f"  <testsuite name={_attribute(name)}{_counts(members)}>")
        lines.extend(f"    {_case(case)}" for case in members)
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"])


def _counts(cases: list[Case]) -> str:
    failures = sum(case.outcome == FAILURE for case in cases)
    attributes = f' tests="{len(cases)}" failures="{failures}"'
    for outcome, name in ((ERROR, "errors"), (SKIPPED, "skipped")):
        number = sum(case.outcome == outcome for case in cases)
        attributes += f' {name}="{number}"' if number else ""
    return attributes


def _case(case: Case) -> str:
    head = (
        f"<testcase classname={_attribute(case.classname)} name={_attribute(case.name)}"
    )
    if not case.outcome:
        return f"{head}/>"
    message = f" message={_attribute(case.reason)}" if case.reason else ""
    details = in_markup(escape(_clean(case.details)))
    return f"{head}><{case.outcome}{message}>{details}</{case.outcome}></testcase>"


def _attribute(value: str) -> str:
    # XML parsers turn an unescaped line break in an attribute into a space.
    return in_markup(
        quoteattr(_clean(value), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})
    )


def _clean(value: str) -> str:
    return _NOT_XML.sub("\ufffd", value)
