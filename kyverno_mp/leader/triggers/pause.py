"""Wait until workers may have appended triggers, or a failed write may be repeated.

Room: leader. Takes: the bell that workers ring, the state of the writer. Gives: Pause.
Next: leader/triggers/writer.py. May touch: one named pipe, the clock.
Source: docs/architecture.md 3 (audit queue and journal).
"""

import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.snapshot.bell import Bell

_POLL_S: Final = 0.02
"""Users wait for the generated object. PERF: for ever, it would cost 1 % of a core."""
_UNRUNG_S: Final = 0.25
"""A worker may die between a record and its ring."""
_RETRY_S: Final = 0.25
_PAUSE_S_MAX: Final = 15.0


class Pause:
    """The pauses of the writer's thread."""

    def __init__(self, bell: Callable[[], Bell | None]) -> None:
        """``bell`` creates what workers ring after each record; None: poll instead."""
        self._new_bell = bell
        self._bell: Bell | None = None
        self._stopping = threading.Event()

    def begin(self) -> None:
        """Create the bell; call it in the writer's thread."""
        self._bell = self._new_bell()

    def stop(self) -> None:
        """End the pauses, the present one soon."""
        self._stopping.set()

    def is_last(self, failures: int, waiting: int) -> bool:
        """Wait until there may be something to write; return whether to stop.

        ``waiting``: records that another attempt may write, without a ring.
        """
        if failures:
            pause_s = min(_PAUSE_S_MAX, _RETRY_S * 2.0 ** min(failures, 10))
            return self._stopping.wait(pause_s)
        if self._bell is None or waiting:
            return self._stopping.wait(_POLL_S)
        self._bell.wait(_UNRUNG_S)
        self._bell.clear()
        return self._stopping.is_set()
