"""Print the number of cases that ran and the capabilities that the others miss."""

from collections import Counter

import pytest

from tests.conformance.cases import all_cases
from tests.conformance.place import ABSENT, PRESENT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, or a note if the data is missing."""
    if not PRESENT:
        terminalreporter.write_line(ABSENT)
        return
    table: dict[str, Counter[str]] = {}
    for case in all_cases():
        suite = case.id.partition("/")[0]
        table.setdefault(case.missing or "runs here", Counter())[suite] += 1
    terminalreporter.write_sep("-", "conformance cases by missing capability")
    suites = ("cli", "policies")
    head = f"{'capability':32}" + "".join(f"{name:>10}" for name in suites)
    terminalreporter.write_line(head)
    for capability in sorted(table, key=lambda name: (name != "runs here", name)):
        counts = "".join(f"{table[capability][name]:>10}" for name in suites)
        terminalreporter.write_line(f"{capability:32}{counts}")
