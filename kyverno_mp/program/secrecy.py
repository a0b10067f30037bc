"""Define the kinds whose values must not appear in reports, Events, logs or statuses.

Room: program. Takes: kinds, errors. Gives: hides_values, reason_for, WITHHELD. Next:
results/entries.py, webhook/audit/records.py, background/failure.py, cleanup/batch.py.
Source: docs/behaviour/engine 5.6; docs/differences.md.

Messages, report properties and errors of rules contain parts of the object. Users who
can read a report or an Event often cannot read a Secret.
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
    """Return whether to omit messages that may quote values of this kind's objects.

    The API group does not matter: a Secret of another group counts, too.
    """
    return kind in _HIDDEN


def withheld(code: str) -> str:
    """Return the replacement for an error message."""
    return f"{code}: {WITHHELD}"


def reason_for(kind: str, error: Error) -> str:
    """Return the reportable text of an error about an object of a kind."""
    hides = hides_values(kind) and not names_only(error)
    return withheld(error.code) if hides else error.message


def names_only(error: Error) -> bool:
    """Return whether the API server's message contains only names, no values."""
    if isinstance(error, KubeNotFound):
        return True
    by_rbac = isinstance(error, KubeRefused) and _BY_RBAC.search(error.message)
    return bool(by_rbac) and not _BY_ADMISSION.search(error.message)
