"""Provide the engine with this machine's clocks.

Room: cli. Takes: nothing. Gives: a Clock. Next: command, testing, bench.
May touch: the clock.
"""

import time
from datetime import UTC, datetime

from kyverno_mp.program.engine import Clock


def clock() -> Clock:
    """Return the real clocks."""
    return Clock(
        now=lambda: datetime.now(UTC).astimezone(), monotonic_ns=time.monotonic_ns
    )
