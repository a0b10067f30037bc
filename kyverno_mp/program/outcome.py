"""What one validate body says, before it becomes a rule result.

Room: program. Takes: made by the bodies (pattern, deny, foreach, ...). Gives: Outcome
to program/rule.py; the fast codes to program/engine.py.
May touch: nothing outside its arguments.
Source: spec/engine.md 5.7, 5.8, 6.2, 6.3, 8.1.
"""

from typing import Final, NamedTuple

from kyverno_mp.limits import MESSAGE_CHARACTERS_MAX

NONE: Final = 0
"""The rule gives no result (engine.md 8.2)."""
PASSED: Final = 1
SKIPPED: Final = 2
EXPLAIN: Final = 3
"""Neither pass nor skip on the fast path: run the explaining program for words."""
UNMATCHED: Final = 4
"""In program/batch: the rule had nothing to say."""
FAILED: Final = 5
"""The fast path knows that the rule failed, and where: no need to explain."""


class Outcome(NamedTuple):
    """Status word of program/result.py with its text; properties for reports."""

    status: str
    message: str
    properties: dict[str, str] | None = None


def joined(message: str, *, rest: str) -> str:
    """Put upstream's frame around a failure of a pattern.

    Shape: ``validation error: <msg>. <rest>``; the full stop only when missing
    (engine.md 5.7).
    """
    if not message:
        return f"validation error: {rest}"
    stop = "" if message.endswith(".") else "."
    return f"validation error: {message}{stop} {rest}"


def cut(message: str) -> str:
    """Shorten a message beyond the limit, and say so in the text."""
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    left_out = len(message) - MESSAGE_CHARACTERS_MAX
    return f"{message[:MESSAGE_CHARACTERS_MAX]} ... ({left_out} characters left out)"
