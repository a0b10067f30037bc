"""Send what Gunicorn says to the same JSON lines as everything else.

Room: webhook. Takes: Gunicorn's configuration. Gives: its logger.
Next: telemetry/log.py. May touch: Gunicorn's loggers.
Source: gunicorn 27 glogging.py.
"""

from typing import Any

from gunicorn.glogging import Logger


class ArbiterLog(Logger):  # type: ignore[misc]
    """Gunicorn's logger without handlers of its own: records go up to the root."""

    def setup(self, cfg: Any) -> None:
        """Set the level as Gunicorn does, then leave the writing to the root logger."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True
