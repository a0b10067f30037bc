"""Print the warnings of a run, and count them for ``--warnings-as-errors``.

Room: cli. Takes: texts. Gives: lines on standard error, and CommandFailed at the end.
Next: cli/apply/command, cli/testing/command.
May touch: standard error, a context variable.
Source: Kyverno 1.19.1 (``--warnings-as-errors``, there for deprecations only).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from kyverno_mp.cli.output.counted import counted
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed

_PRINTED: Final[ContextVar[list[str] | None]] = ContextVar("printed", default=None)


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """Yield a list that gets all warnings of the block."""
    kept: list[str] = []
    token = _PRINTED.set(kept)
    try:
        yield kept
    finally:
        _PRINTED.reset(token)


def warn(text: str, echo: Callable[[str], None] | None = None) -> None:
    """Print a warning: with ``echo`` as it is, otherwise as a line on stderr."""
    kept = _PRINTED.get()
    if kept is not None:
        kept.append(text)
    if echo is None:
        say(f"warning: {text}", err=True)
    else:
        echo(text)


def refuse_warnings(number: int, *, as_errors: bool) -> None:
    """Raise CommandFailed if there were warnings, and they count as errors."""
    if number and as_errors:
        said = counted(number, "warning")
        raise CommandFailed(f"found {said} and --warnings-as-errors is set")
