"""Define the possible outcomes of a background task, including waits.

Room: background. Takes: nothing. Gives: Outcome and its constants. Next:
background/requests.py, which waits and counts dropped tasks.
Source: docs/pools.md 3; docs/background.md (requests).
"""

from typing import Final, NamedTuple

from kyverno_mp.limits import BACKGROUND_ENDING_S_MAX

ABSENT_S: Final = 30.0
"""A change that another webhook rejects is never stored."""

EARLY_S: Final = 2.0
"""The API server has stored the objects of most reviews by then: the calls of other
webhooks take milliseconds, and 30 seconds only at most."""


class Outcome(NamedTuple):
    """How a task ended. ``waits``: the change to process is not stored yet."""

    applied: bool = False
    waits: bool = False
    reason: str = ""
    """Why the task waits."""
    limit_s: float = ABSENT_S
    """The longest wait."""
    drops_as: str = ""
    """The outcome counted after the longest wait; "" counts as done."""
    early_s: float = 0.0
    """The wait after which there is an early look (looks.py); 0 = none."""
    runs_then: bool = False
    """Whether the task runs with the current objects after the longest wait."""
    pause_s: float = 0.0
    """The pause before the next attempt; 0 = soon."""

    def shortened(self) -> "Outcome":
        """Return the same wait with a short limit."""
        pause_s = min(self.pause_s, ABSENT_S)
        drops_as = self.drops_as or CONTESTED
        return self._replace(limit_s=ABSENT_S, pause_s=pause_s, drops_as=drops_as)


ABSENT: Final = "dropped_absent"
PRESENT: Final = "dropped_present"
CONTESTED: Final = "dropped_contested"
DONE: Final = Outcome()
APPLIED: Final = Outcome(applied=True)
NOT_STORED: Final = Outcome(waits=True, reason="trigger not stored yet", runs_then=True)
SETTLES: Final = Outcome(
    waits=True, reason="more triggers may be lost", early_s=EARLY_S, runs_then=True
)
NO_TRIGGER: Final = Outcome(
    waits=True, reason="the trigger does not exist", drops_as=ABSENT
)
STILL_WANTED: Final = Outcome(
    waits=True, reason="what was generated is still wanted", drops_as=PRESENT
)
NOT_DELETED: Final = Outcome(
    waits=True, reason="the trigger was not deleted", drops_as=PRESENT
)
IS_ENDING: Final = Outcome(
    waits=True,
    reason="the object is still being deleted",
    limit_s=float(BACKGROUND_ENDING_S_MAX),
    drops_as=PRESENT,
)


def contested(pause_s: float) -> Outcome:
    """Return the outcome for an object that is left to other writers for now."""
    return Outcome(
        applied=True,
        waits=True,
        reason="others change what was generated",
        limit_s=float("inf"),
        pause_s=pause_s,
    )
