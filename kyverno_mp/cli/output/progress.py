"""Show the progress of a long run on a terminal.

Room: cli. Takes: the number of steps. Gives: a function to call after each step.
Next: apply, testing/command. May touch: standard error, and only when it is a terminal.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_STEPS_MIN: Final = 200
"""Shorter runs are over before a bar could be read."""
_REDRAW_S: Final = 0.1

Advance = Callable[[int], None]


@contextmanager
def progress(label: str, steps: int) -> Iterator[Advance]:
    """Give a function that moves the bar by a number of steps."""
    if steps < _STEPS_MIN or not sys.stderr.isatty():
        yield _ignore
        return
    # Importing rich costs 30 ms, which only a terminal with a long run pays.
    from rich.console import Console
    from rich.progress import Progress

    # No refresh thread: worker processes are forked while the bar is shown.
    with Progress(
        console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task(label, total=steps)
        drawn = time.monotonic()

        def advance(number: int) -> None:
            nonlocal drawn
            bar.advance(task, number)
            now = time.monotonic()
            if now - drawn >= _REDRAW_S:
                drawn = now
                bar.refresh()

        yield advance


def _ignore(_number: int) -> None:
    """Take the place of a bar."""
