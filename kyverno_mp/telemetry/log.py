"""Write log lines as JSON objects to stderr, one per line.

Room: telemetry. Takes: the role and the minimum level. Gives: configured stdlib
logging.
Secrets never reach a message: rooms log codes, names and counts, not bodies.
May touch: stderr, the root logger.
"""

import json
import logging
import sys
from datetime import UTC, datetime

_LINE_CHARS_MAX = 8192
_EXTRA = "fields"


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, role, logger, message, extra fields."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback is one string field, so the line stays one."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds"
            ),
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


def set_up(role: str, level: str) -> None:
    """Send the records of every logger of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def fields(**values: object) -> dict[str, object]:
    """Return the ``extra`` of a log call: ``log.info("x", extra=fields(count=1))``."""
    return {_EXTRA: values}
