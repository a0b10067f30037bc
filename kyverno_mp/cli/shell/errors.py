"""Define the errors that end a command, with message and exit code.

Room: cli. Gives: CommandFailed to every command; cli/main.py prints it.
Source: docs/behaviour/cli 1.
"""

from os import PathLike


class CommandFailed(Exception):
    """Error that ends a command; an empty message is not printed."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class NotEvaluated(CommandFailed):
    """Error of a command that needs a feature which this version does not evaluate."""


def read_error(error: OSError, path: str | PathLike[str]) -> str:
    """Return upstream's message for a file that could not be read."""
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    done = "read" if isinstance(error, IsADirectoryError) else "open"
    return f"{done} {path}: {error.strerror.lower()}"
