"""Set Hypothesis up for all tests, and count a run for tests.suites."""

import gc
import json
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.examples import scaled

# No result depends on the speed of the machine: counts guard costs. The parent is the
# profile that Hypothesis chose, which differs in CI.
settings.register_profile(
    "any speed",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any speed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare where the counts of a run go."""
    parser.addoption("--counts", metavar="FILE", help="write the counts of the run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scale the examples that property tests state to this run's percentage."""
    functions = [getattr(item, "obj", None) for item in items]
    # The items of a parametrized test have the same function.
    for test in {id(each): each for each in functions}.values():
        if isinstance(test, FunctionType) and is_hypothesis_test(test):
            marked: Any = test
            stated = marked._hypothesis_internal_use_settings
            budget = settings(stated, max_examples=scaled(stated.max_examples))
            marked._hypothesis_internal_use_settings = budget


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of every later collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """Send one report of a test that passed, not those of its parts and ends as well.

    In a worker of xdist, each message takes as much CPU time as a short test.
    """
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason with the number of tests that were skipped for it."""
    reasons = _reasons(terminalreporter)
    if reasons:
        terminalreporter.write_sep("-", "tests that were not run")
        for reason, count in sorted(reasons.items()):
            terminalreporter.write_line(f"{count:>6}  {reason}")
    counts = terminalreporter.config.getoption("--counts")
    if counts:
        Path(counts).write_text(json.dumps(_counts(terminalreporter, reasons)))


def _reasons(reporter: pytest.TerminalReporter) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", ()):
        # (file, line, reason); an expected failure has a separate text.
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        reasons[said.removeprefix("Skipped: ") or "no reason given"] += 1
    return reasons


def _counts(
    reporter: pytest.TerminalReporter, reasons: Counter[str]
) -> dict[str, object]:
    """Return the fields of tests.suites.Result that only pytest knows."""
    stats = reporter.stats
    failures = [*stats.get("failed", ()), *stats.get("error", ())]
    return {
        "passed": len(stats.get("passed", ())),
        "failed": len(failures),
        "skipped": reasons,
        "failures": [report.nodeid for report in failures],
    }
