"""A fault that lasts writes few log lines, and says how many it has not written."""

import io
import logging

import pytest

from kyverno_mp.limits import (
    LOG_CAUSES_MAX,
    LOG_INTERVAL_S,
    LOG_LINES_OF_CAUSE,
    LOG_LINES_OF_PLACE,
)
from kyverno_mp.telemetry.repeats import Repeats


class Log:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.repeats = Repeats(self.handler.emit, lambda: self.now_s)
        self.handler.addFilter(self.repeats)
        self.logger = logging.Logger("test")  # noqa: LOG001 - used by this test only
        self.logger.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    def report_failed(self, name: str, error: str) -> None:
        """Log as the reports pool does for each object."""
        self.logger.warning("report of a/%s: %s", name, error)


@pytest.fixture
def log() -> Log:
    return Log()


def _missing(number: int) -> str:
    path = f"/apis/wgpolicyk8s.io/v1alpha2/namespaces/a/policyreports/uid-{number}"
    return f"POST {path}: HTTP 404: the server could not find the requested resource"


def test_a_cause_has_few_lines_for_any_number_of_objects(log: Log) -> None:
    for number in range(3000):
        log.report_failed(f"pod-{number}", _missing(number))
        log.now_s += 1 / 32
    intervals = 3000 / 32 / LOG_INTERVAL_S
    assert len(log.lines) <= (intervals + 1) * (LOG_LINES_OF_CAUSE + 1)
    (summary,) = [line for line in log.lines if "more lines" in line]
    suppressed = 32 * LOG_INTERVAL_S - LOG_LINES_OF_CAUSE
    assert summary.startswith(f"{suppressed} more lines in 60 s such as: report of a/")


def test_other_causes_of_the_same_place_have_their_lines(log: Log) -> None:
    for number in range(100):
        log.report_failed("x", _missing(number))
    log.report_failed("y", "POST /apis/x: HTTP 403: forbidden")
    assert log.lines[-1] == "report of a/y: POST /apis/x: HTTP 403: forbidden"


def test_a_place_has_a_bound_for_all_causes(log: Log) -> None:
    for number in range(500):
        log.report_failed("x", f"cause {'x' * number}")
    assert len(log.lines) == LOG_LINES_OF_PLACE


def test_decisions_are_never_suppressed(log: Log) -> None:
    for _ in range(500):
        log.logger.info("denied")
    assert log.lines == ["denied"] * 500


def test_a_message_without_arguments(log: Log) -> None:
    for number in range(500):
        log.logger.error(_missing(number))
    assert len(log.lines) == LOG_LINES_OF_CAUSE


def test_suppressed_lines_are_counted_after_the_fault(log: Log) -> None:
    for _ in range(20):
        log.report_failed("x", "away")
    log.now_s = LOG_INTERVAL_S
    log.logger.warning("something else")
    assert "15 more lines in 60 s such as: report of a/x: away" in log.lines


def test_memory_is_bounded(log: Log) -> None:
    for number in range(3 * LOG_CAUSES_MAX):
        log.report_failed("x", "x" * (number % 150) + "y" * (number // 150))
    assert len(log.repeats._counts) <= LOG_CAUSES_MAX + 2
