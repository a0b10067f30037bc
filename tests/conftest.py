"""List skipped tests and their reasons after a run; set Hypothesis up for all tests."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# No result depends on the speed of the machine: counts guard costs. The parent is the
# profile that Hypothesis chose, which differs in CI.
settings.register_profile(
    "any speed",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any speed")


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
