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
    warnings: list[str] = []
    token = _PRINTED.set(warnings)
    try:
        yield warnings
    finally:
        _PRINTED.reset(token)


def warn(message: str, echo: Callable[[str], None] | None = None) -> None:
    """Print a warning: with ``echo`` as it is, otherwise as a line on stderr."""
    warnings = _PRINTED.get()
    if warnings is not None:
        warnings.append(message)
    if echo is None:
        say(f"warning: {message}", err=True)
    else:
        echo(message)


def refuse_warnings(number: int, *, as_errors: bool) -> None:
    """Raise CommandFailed if there were warnings, and they count as errors."""
    if number and as_errors:
        count = counted(number, "warning")
        raise CommandFailed(f"found {count} and --warnings-as-errors is set")
