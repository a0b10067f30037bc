"""List skipped tests and their reasons after a run."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason with the number of tests that were skipped for it."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        # (file, line, reason); an expected failure has a separate text.
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        reasons[said.removeprefix("Skipped: ") or "no reason given"] += 1
    if not reasons:
        return
    terminalreporter.write_sep("-", "tests that were not run")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:>6}  {reason}")
