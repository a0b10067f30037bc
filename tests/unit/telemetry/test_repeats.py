"""A fault that lasts writes few log lines, and says how many it has not written."""

import io
import json
import logging

import pytest

from kyverno_mp.limits import (
    LOG_CAUSES_MAX,
    LOG_INTERVAL_S,
    LOG_LINES_OF_CAUSE,
    LOG_LINES_OF_PLACE,
)
from kyverno_mp.telemetry.repeats import Repeats
from tests.e2e.logs import crowded


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


@pytest.mark.parametrize(
    "message",
    [
        "policy require-labels-%d of team/a cannot be linked",
        'policy "team %d" cannot be evaluated (internal error)',
        "the API server rejects an UpdateRequest of policy a.b%d: forbidden",
        "no heartbeat from pod kyverno-%d, killing it",
        "5f2c9a10-%d is the uid of no object",
    ],
)
def test_names_do_not_tell_causes_apart(log: Log, message: str) -> None:
    """Also names in the middle of a message, and one in its only argument."""
    for number in range(10 * LOG_LINES_OF_CAUSE):
        log.logger.warning("%s", message % number)
    assert len(log.lines) == LOG_LINES_OF_CAUSE


def test_words_and_status_codes_tell_causes_apart(log: Log) -> None:
    messages = [
        f"a policy cannot be {done}: HTTP {code}"
        for done in ("linked", "read", "checked")
        for code in (403, 404, 500)
    ]
    for message in messages * LOG_LINES_OF_CAUSE:
        log.logger.warning(message)
    assert len(log.lines) == len(messages) * LOG_LINES_OF_CAUSE


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


def test_a_log_has_no_line_beyond_those_of_its_causes() -> None:
    """The end-to-end tests find each line that the filter of a process left."""

    def line(second: int, pid: int, message: str, level: str = "warning") -> str:
        fields = {
            "time": f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000+00:00",
            "level": level,
            "pid": pid,
            "logger": "a.b",
            "message": message,
        }
        return json.dumps(fields)

    allowed = [
        line(second, pid, f"report of x-{second}: away")
        for second in (*range(LOG_LINES_OF_CAUSE), LOG_INTERVAL_S)
        for pid in (1, 2)
    ]
    decisions = [line(1, 1, "denied", "info")] * 100
    assert crowded("\n".join([*allowed, "no JSON", *decisions])) == []
    beyond = line(LOG_LINES_OF_CAUSE, 2, "report of y-1: away")
    at = 2 * LOG_LINES_OF_CAUSE
    lines = [*allowed[:at], beyond, *allowed[at:]]
    assert crowded("\n".join(lines)) == [beyond]
