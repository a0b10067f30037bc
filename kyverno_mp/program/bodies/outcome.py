"""Define the outcome of one validate body, before it becomes a rule result.

Room: program. Takes: created by the bodies (pattern, deny, foreach, ...). Gives:
Outcome to program/rule.py; the fast codes to program/engine.py.
Source: docs/behaviour/engine 5.7, 5.8, 6.2, 6.3, 8.1.
"""

from typing import Final, NamedTuple

from kyverno_mp.limits import MESSAGE_CHARACTERS_MAX, SHORTENED_MESSAGE_CHARACTERS

NONE: Final = 0
"""The rule has no result (docs/behaviour/engine 8.2)."""
PASSED: Final = 1
SKIPPED: Final = 2
EXPLAIN: Final = 3
"""Neither pass nor skip on the fast path: run the explaining program."""
UNMATCHED: Final = 4
"""Used in program/plans/batch: the rule had no result."""
FAILED: Final = 5
"""The fast path found the failure and its location, so no explanation is needed."""


class Outcome(NamedTuple):
    """A status from program/result.py with its message, and properties for reports."""

    status: str
    message: str
    properties: dict[str, str] | None = None
    warns: bool = False
    code: str = ""
    """The code of the error that caused an error result."""


def joined(message: str, *, rest: str) -> str:
    """Wrap a pattern's failure message as upstream does.

    Shape: ``validation error: <msg>. <rest>``; a full stop is added only if it is
    missing (docs/behaviour/engine 5.7).
    """
    if not message:
        return f"validation error: {rest}"
    stop = "" if message.endswith(".") else "."
    return f"validation error: {message}{stop} {rest}"


def cut(message: str) -> str:
    """Truncate a message beyond the limit, and say so in the message."""
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    left_out = len(message) - MESSAGE_CHARACTERS_MAX
    return f"{message[:MESSAGE_CHARACTERS_MAX]} ... ({left_out} characters omitted)"


def shortened(message: str) -> str:
    """Return the start of a string that is too long to read."""
    most = SHORTENED_MESSAGE_CHARACTERS
    return message if len(message) <= most else f"{message[:most]}... (shortened)"
