"""Wait for a condition of a cluster; all these tests use this function."""

import time
from collections.abc import Callable
from typing import Any, Final

WAIT_S: Final = 120.0
_POLL_S: Final = 0.05


def wait_for(condition: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """Return the condition's value once it is true; fail after ``seconds``."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(_POLL_S)
    return found
