"""Name the kinds whose values must not be quoted: no report, Event, log or status.

Room: program. Takes: kinds, errors. Gives: hides_values, reason_for, WITHHELD. Next:
reports/entries.py, webhook/audit/records.py, background/failure.py, cleanup/batch.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 5.6; docs/differences.md.

Texts of rules are made of the object: messages, report properties, errors. Whoever may
read a report or an Event may often not read a Secret.
"""

import re
from typing import Final

from kyverno_mp.errors import Error, KubeNotFound, KubeRefused

_HIDDEN: Final = frozenset({"Secret"})
WITHHELD: Final = "the reason is withheld because it may quote a Secret"
_BY_RBAC: Final = re.compile(r"cannot [a-z]+ resource ")
_BY_ADMISSION: Final = re.compile(
    r"admission webhook|denied request|denied the request"
)


def hides_values(kind: str) -> bool:
    """Return whether to omit messages that may quote values of objects of a kind.

    Of any group: also a Secret of another API group.
    """
    return kind in _HIDDEN


def withheld(code: str) -> str:
    """Return what is written instead of the text of an error."""
    return f"{code}: {WITHHELD}"


def reason_for(kind: str, error: Error) -> str:
    """Return what may be reported of an error about an object of a kind."""
    hides = hides_values(kind) and not names_only(error)
    return withheld(error.code) if hides else error.message


def names_only(error: Error) -> bool:
    """Return whether a message of the API server has names alone, and helps."""
    if isinstance(error, KubeNotFound):
        return True
    by_rbac = isinstance(error, KubeRefused) and _BY_RBAC.search(error.message)
    return bool(by_rbac) and not _BY_ADMISSION.search(error.message)
