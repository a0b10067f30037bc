"""Name the kinds whose values must not be quoted: no report, Event, log or status.

Room: program. Takes: kinds. Gives: hides_values, WITHHELD. Next: reports/entries.py,
webhook/audit/records.py and background/runner.py ask.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 5.6; docs/differences.md.

Texts of rules are made of the object: messages, report properties, errors. Whoever may
read a report or an Event may often not read a Secret.
"""

from typing import Final

_HIDDEN: Final = frozenset({"Secret"})
WITHHELD: Final = "the reason is withheld because it may quote a Secret"


def hides_values(kind: str) -> bool:
    """Return whether to omit texts that may quote values of objects of a kind.

    Of any group: also a Secret of another API group.
    """
    return kind in _HIDDEN


def withheld(code: str) -> str:
    """Return what is written instead of the text of an error."""
    return f"{code}: {WITHHELD}"
