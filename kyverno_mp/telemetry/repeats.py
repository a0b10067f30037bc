"""Limit the log lines of one cause: a fault that lasts must not hide all others.

Room: telemetry. Takes: log records. Gives: Repeats, a filter of the log's handler.
Next: telemetry/log.py installs it in every role. May touch: the clock, the handler.

A cause is the place in the code together with its message without the names in it:
without quoted texts, and words that are not of letters only. Within LOG_INTERVAL_S,
LOG_LINES_OF_CAUSE lines of a cause are written and LOG_LINES_OF_PLACE of a place. The
number of further ones is written afterwards. Only warnings and errors are limited:
lines about decisions are answers to questions.
"""

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kyverno_mp.limits import (
    LOG_CAUSES_MAX,
    LOG_INTERVAL_S,
    LOG_LINES_OF_CAUSE,
    LOG_LINES_OF_PLACE,
)

_QUOTED: Final = re.compile(r'"[^"]*"')
_PUNCTUATION: Final = ".,:;()[]{}'`"
_CODE_DIGITS: Final = 3
"""Of a status code, which tells causes apart."""
_MESSAGE_CHARACTERS: Final = 1000
_CAUSE_CHARACTERS: Final = 200
_Cause = tuple[str, int, str]


@dataclass(slots=True)
class _Count:
    """The lines of one cause or place since ``since_s``."""

    since_s: float
    lines: int = 0
    suppressed: int = 0
    first: str = ""


class Repeats(logging.Filter):
    """Lets only some lines of a cause pass; threads may share it."""

    def __init__(
        self,
        emit: Callable[[logging.LogRecord], object],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``emit`` writes a line about suppressed lines."""
        super().__init__()
        self._emit = emit
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._counts: OrderedDict[_Cause, _Count] = OrderedDict()
        """The cause or place whose interval began first is first."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.levelno < logging.WARNING:
            return True
        now_s = self._monotonic_s()
        with self._lock:
            ended = self._end(now_s)
            passes = self._count(record, now_s)
        for count in ended:
            self._emit(_summary(record, count))
        return passes

    def _count(self, record: logging.LogRecord, now_s: float) -> bool:
        message = record.getMessage()
        key = (record.pathname, record.lineno, _cause(message))
        cause = self._counter(key, now_s)
        place = self._counter((record.pathname, record.lineno, ""), now_s)
        if cause.lines < LOG_LINES_OF_CAUSE and place.lines < LOG_LINES_OF_PLACE:
            cause.lines += 1
            place.lines += 1
            return True
        cause.first = cause.first or message
        cause.suppressed += 1
        return False

    def _counter(self, key: _Cause, now_s: float) -> _Count:
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count(now_s)
        return count

    def _end(self, now_s: float) -> list[_Count]:
        """Forget intervals that have ended; return those with suppressed lines."""
        ended = []
        while self._counts:
            key, count = next(iter(self._counts.items()))
            is_over = now_s - count.since_s >= LOG_INTERVAL_S
            if not is_over and len(self._counts) <= LOG_CAUSES_MAX:
                break
            del self._counts[key]
            if count.suppressed:
                ended.append(count)
        return ended


def _cause(message: str) -> str:
    """Return the message without names; never empty, which stands for the place."""
    words = _QUOTED.sub("*", message[:_MESSAGE_CHARACTERS]).split()
    cause = " ".join("*" if _is_name(word) else word for word in words)
    return cause[:_CAUSE_CHARACTERS] or "*"


def _is_name(word: str) -> bool:
    """Return whether a word is a name, a path, a uid or a large number."""
    word = word.strip(_PUNCTUATION)
    if word.isdecimal():
        return len(word) > _CODE_DIGITS
    return not word.replace("'", "").isalpha()


def _summary(record: logging.LogRecord, count: _Count) -> logging.LogRecord:
    return logging.LogRecord(
        name=record.name,
        level=logging.WARNING,
        pathname=__file__,
        lineno=0,
        msg="%d more lines in %d s such as: %s",
        args=(count.suppressed, LOG_INTERVAL_S, count.first),
        exc_info=None,
    )
