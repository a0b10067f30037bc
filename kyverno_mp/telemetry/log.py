"""Write log lines to stderr: JSON objects, or text for a terminal.

Room: telemetry. Takes: the role, the minimum level, the format. Gives: configured
stdlib logging. Next: every role calls set_up once, after its fork. Messages never
contain secrets: rooms log codes, names and counts, not bodies. May touch: stderr, the
root logger.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.telemetry.repeats import Repeats

_LINE_CHARS_MAX = 8192
_EXTRA = "fields"
TEXT: Final = "text"
JSON: Final = "json"


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, role, logger, message, extra fields."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, even with a traceback, which becomes one string field."""
        entry: dict[str, object] = {
            "time": _time_of(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "role": self._role,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage()[:_LINE_CHARS_MAX],
        }
        extra = getattr(record, _EXTRA, None)
        if isinstance(extra, dict):
            entry.update(extra)
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)[-_LINE_CHARS_MAX:]
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Time, level, role, message, then the extra fields as ``key=value``."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; the lines of a traceback follow it, indented."""
        time = (
            _time_of(record).isoformat(timespec="milliseconds").removesuffix("+00:00")
        )
        message = _printable(record.getMessage()[:_LINE_CHARS_MAX])
        words = [f"{time}Z {record.levelname.lower():<7} {self._role:<10} {message}"]
        extra = getattr(record, _EXTRA, None)
        if isinstance(extra, dict):
            words += [f"{name}={_word(value)}" for name, value in extra.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            trace = self.formatException(record.exc_info)[-_LINE_CHARS_MAX:]
            lines += [f"    {_printable(line)}" for line in trace.splitlines()]
        return "\n".join(lines)


def set_up(role: str, level: str, form: str = JSON) -> None:
    """Send the records of every logger of this process to stderr.

    ``form``: TEXT or JSON.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines(role) if form == TEXT else JsonLines(role))
    handler.addFilter(Repeats(handler.emit))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def fields(**values: object) -> dict[str, object]:
    """Return the ``extra`` of a log call: ``log.info("x", extra=fields(count=1))``."""
    return {_EXTRA: values}


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _word(value: object) -> str:
    """Return a value as one word, quoted if necessary."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if isinstance(value, str) and (not text or set(text) & set(" =\"'")):
        text = json.dumps(text, ensure_ascii=False)
    return _printable(text)


def _printable(text: str) -> str:
    """Escape control characters, because names in requests could control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
