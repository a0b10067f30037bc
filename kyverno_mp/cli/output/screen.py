r"""Escape control characters and workflow commands in everything that is printed.

Room: cli. Takes: the text of a command, written to standard output or error. Gives:
the same text with escapes. Next: cli/main, which installs the streams.
May touch: sys.stdout, sys.stderr.
Source: ECMA-48 (C0, C1); Unicode TR9 (bidirectional formatting); GitHub, "Workflow
commands for GitHub Actions"; Azure Pipelines, "Logging commands".

SAFETY: names, messages, keys and values come from files and clusters of strangers. The
streams escape all of them, so no command can forget it. Only a `Safe` text passes
unchanged: its author has escaped the parts that came from outside. An escape has the
form ``\u001b``, which JSON and double-quoted YAML read as the character, so output for
programs keeps its values.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO, cast

import click

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # Bidirectional controls, separators of lines, halves of characters.
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_INVISIBLE: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Default_Ignorable_Code_Point: comparisons that follow a culture skip them, such as
those of runners written in .NET, so they can stand anywhere in a command."""
_SKIPPED: Final = re.compile(f"[{_INVISIBLE}]")
_I: Final = f"[{_INVISIBLE}]*"
_LOGGING: Final = re.compile(
    rf"(#{_I}#{_I}(?:v{_I}s{_I}o{_I})?)\[", re.IGNORECASE | re.ASCII
)
"""A logging command, anywhere in a line."""
_COMMAND: Final = re.compile(rf"^([\s{_INVISIBLE}]*:{_I}):", re.MULTILINE)
_KEPT_CHARS: Final = len("##vso")
"""Characters before a write that can begin a logging command."""


class Safe(str):
    """A text whose parts from outside have been escaped; streams print it unchanged."""

    __slots__ = ()


def escaped(character: str) -> str:
    r"""Return the escape of a character of the basic plane: ``\u001b``."""
    return f"\\u{ord(character):04x}"


def unsafe_replaced(output: str, write: Callable[[str], str]) -> str:
    """Replace each unsafe character by what ``write`` returns for it."""
    output = _without_logging(output, write)
    return _COMMAND.sub(lambda match: match[1] + write(":"), output)


def in_markup(markup: str) -> str:
    """Return XML or HTML with unsafe characters as its own escapes: ``&#58;``."""
    return unsafe_replaced(markup, lambda character: f"&#{ord(character)};")


def _without_logging(output: str, write: Callable[[str], str]) -> str:
    output = _UNSAFE.sub(lambda match: write(match[0]), output)
    return _LOGGING.sub(lambda match: match[1] + write("["), output)


def printable(output: str) -> str:
    r"""Escape what could control a terminal or a workflow; line breaks are kept.

    A line that begins with ``::`` gets ``:\u003a`` instead.
    """
    return unsafe_replaced(output, escaped)


def one_line(value: object) -> str:
    """Return a name or a value for the middle of a line; line breaks are escaped."""
    return printable(str(value)).replace("\n", escaped("\n"))


def without_controls(value: str) -> str:
    """Escape the same, but not ``::``, for parts that never begin a line."""
    return _without_logging(value, escaped)


def say(message: str, *, err: bool = False) -> None:
    """Print one line; line breaks in it come from outside and are escaped."""
    click.echo(one_line(message), err=err)


def show(output: str) -> None:
    """Print a block as it is on standard output; a `Safe` text keeps its colours."""
    sys.stdout.write(output)
    sys.stdout.flush()


class Screen:
    """A text stream that escapes everything except `Safe` texts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before = ""
        """The end of the current line, as far as a command could begin in it."""

    def write(self, output: str) -> int:
        """Write the text, with escapes; return its length."""
        if isinstance(output, Safe):
            self._stream.write(output)
            self._before = "" if output.endswith("\n") else "x"
            return len(output)
        before = self._before
        printed = printable(before + output)[len(before) :]
        self._stream.write(printed)
        line = _SKIPPED.sub("", (before + printed).rpartition("\n")[2])
        start = line.lstrip()
        # A command begins after spaces only; behind other characters, none can begin.
        self._before = start if start in ("", ":") else "x" + line[-_KEPT_CHARS:]
        return len(output)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def screens() -> Iterator[None]:
    """Let everything that is printed pass through a Screen."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        # The caller can close a stream; it is None then.
        stream if stream is None else cast("TextIO", Screen(stream))
        for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def has_colors(*, is_removed: bool = False) -> bool:
    """Return whether a person reads the output and has not switched colours off.

    Source: https://no-color.org. rich follows this variable by itself.
    """
    if is_removed or not sys.stdout.isatty():
        return False
    from kyverno_mp.settings.read import environment  # not needed in a pipeline

    return not environment().get("NO_COLOR")
