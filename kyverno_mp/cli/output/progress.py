"""Show the progress of a long run on a terminal.

Room: cli. Takes: the number of steps. Gives: a Bar, to call after each step.
Next: apply, cli/testing/command, bench, sources. May touch: standard error, if it is a
terminal; the clock.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from kyverno_mp.cli.output.screen import Safe, one_line

_QUIET_S: Final = 1.0
"""Shorter runs end before a user could read the line."""
_REDRAW_S: Final = 0.1
_MINUTE_S: Final = 60
_COLUMNS: Final = 80

Advance = Callable[[int], None]


class Bar(Protocol):
    """The interface that a run calls to show its progress."""

    def __call__(self, number: int, /) -> None:
        """Count finished steps."""

    def hide(self) -> None:
        """Remove the line before other output."""


@contextmanager
def progress(label: str, steps: int, things: str) -> Iterator[Bar]:
    """Yield a Bar, which draws nothing unless standard error is a terminal.

    ``steps`` 0: their number is unknown. ``things``: plural noun for the steps.
    """
    if not sys.stderr.isatty():
        yield _Nothing()
        return
    bar = Line(sys.stderr, label, steps, things)
    try:
        yield bar
    finally:
        bar.hide()


class _Nothing:
    """A Bar that shows nothing."""

    def __call__(self, number: int, /) -> None:
        """Do nothing."""

    def hide(self) -> None:
        """Do nothing."""


class Line:
    """A line on the terminal that is redrawn, and removed at the end."""

    def __init__(
        self,
        stream: TextIO,
        label: str,
        steps: int,
        things: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._label = label
        self._steps = steps
        self._things = things
        self._now_s = now_s
        self._start_s = self._drawn_s = now_s()
        self._done = 0
        self._is_shown = False

    def __call__(self, number: int, /) -> None:
        """Count finished steps; redraw the line if it is due."""
        self._done += number
        now_s = self._now_s()
        if now_s - self._start_s >= _QUIET_S and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self._is_shown = True
            line = one_line(self._text(now_s))[: _columns(self._stream)]
            self._stream.write(Safe(f"\r{line}\x1b[K"))
            self._stream.flush()

    def hide(self) -> None:
        """Remove the line before other output."""
        if self._is_shown:
            self._is_shown = False
            self._stream.write(Safe("\r\x1b[K"))
            self._stream.flush()

    def _text(self, now_s: float) -> str:
        rate = self._done / (now_s - self._start_s)
        total = f" of {self._steps:,}" if self._steps else ""
        line = f"{self._label}: {self._done:,}{total} {self._things}, {rate:,.0f}/s"
        if self._steps and rate:
            line += f", {_duration((self._steps - self._done) / rate)} left"
        return line


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _columns(stream: TextIO) -> int:
    """Return the width of the terminal, so that the line does not wrap."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or _COLUMNS) - 1
    except (OSError, ValueError):
        return _COLUMNS - 1
