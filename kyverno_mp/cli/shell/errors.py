"""Errors of a command: the message after ``Error:`` and the exit code.

Room: cli. Gives: CommandFailed to every command; cli/main.py prints it.
May touch: nothing outside its arguments. Source: docs/behaviour/cli 1.
"""

from os import PathLike


class CommandFailed(Exception):
    """A command ends with ``Error: <message>`` on stderr (silent when empty)."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class NotEvaluated(CommandFailed):
    """A command needs a feature that this version does not evaluate."""


def read_error(error: OSError, path: str | PathLike[str]) -> str:
    """Return why a file could not be read, with upstream's message."""
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    done = "read" if isinstance(error, IsADirectoryError) else "open"
    return f"{done} {path}: {error.strerror.lower()}"
