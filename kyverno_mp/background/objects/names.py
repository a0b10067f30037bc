"""Remember the names of triggers whose labels contain only their uid.

Room: background. Takes: lists of names by uid. Gives: Names. Next:
background/objects/triggers.py.
Source: docs/behaviour/controllers 5.3 (labels have no name of the trigger).
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from kyverno_mp.limits import BACKGROUND_ABSENT_MAX, BACKGROUND_NAMES_MAX


class Place(NamedTuple):
    """The kind of a trigger, and its namespace."""

    group: str
    plural: str
    namespace: str


class Names:
    """The names by uid; bounded, and threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listed: OrderedDict[Place, dict[str, str]] = OrderedDict()
        """The places with the last lists, in the order of use."""
        self._number = 0
        self._absent: OrderedDict[tuple[Place, str], None] = OrderedDict()

    def name(self, location: Place, uid: str) -> str:
        """Return the name that the last list had for this uid, "" if unknown."""
        with self._lock:
            if location not in self._listed:
                return ""
            self._listed.move_to_end(location)
            return self._listed[location].get(uid, "")

    def keep(self, location: Place, names: dict[str, str], uid: str) -> None:
        """Keep a new list, in which this uid was looked for.

        The API server never gives a uid twice, and labels contain only uids of objects
        that exist or existed. So a uid that is absent stays absent.

        SAFETY: every user who can write an object can forge its labels. Without this
        memory, each forged uid would cost a list at every event of the rule.
        """
        with self._lock:
            self._number += _size(names) - _size(self._listed.pop(location, None))
            self._listed[location] = names
            while self._number > BACKGROUND_NAMES_MAX and len(self._listed) > 1:
                self._number -= _size(self._listed.popitem(last=False)[1])
            if uid not in names:
                self._absent[location, uid] = None
                while len(self._absent) > BACKGROUND_ABSENT_MAX:
                    self._absent.popitem(last=False)

    def is_absent(self, location: Place, uid: str) -> bool:
        """Return whether an earlier list shows that there is no such object."""
        with self._lock:
            return (location, uid) in self._absent


def _size(names: dict[str, str] | None) -> int:
    """Return how much a list counts; an empty one takes memory, too."""
    return 0 if names is None else 1 + len(names)
