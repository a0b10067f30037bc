"""Send Gunicorn's log records to the root logger, like all other records.

Room: webhook. Takes: Gunicorn's configuration. Gives: its logger.
Next: telemetry/log.py. May touch: Gunicorn's loggers.
Source: gunicorn 27 glogging.py.
"""

from typing import Any

from gunicorn.glogging import Logger


class ArbiterLog(Logger):  # type: ignore[misc]
    """Gunicorn's logger without its own handlers: records propagate to the root."""

    def setup(self, cfg: Any) -> None:
        """Set the level as Gunicorn does; the root logger writes the records."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log the arbiter's lines about each start and stop at level debug.

        They repeat our own lines, and show the address as an http:// URL.
        """
        self.debug(msg, *args, **kwargs)
