"""Keep the requests and tasks of each trigger, and the progress of each request.

Room: background. Takes: nothing. Gives: Lane, Progress. Next: background/requests.py.
Source: docs/background.md (requests).
"""

from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.background.pacing import Pace
from kyverno_mp.background.update_request import Task, number_of
from kyverno_mp.kube.resource import Key
from kyverno_mp.queues.work_queue import Backoff

_POLLS: Final = Backoff(least_s=0.05, most_s=2.0)
_LATE_AT_MOST: Final = 10.0
"""The last pause may prolong a wait by up to a tenth."""


@dataclass(slots=True)
class Progress:
    """The progress of one version of a request; it was first seen at ``marked_s``."""

    uid: str
    version: str
    pace: Pace
    polls: int = 0
    marked_s: float = 0.0
    waiting_since_s: float = 0.0
    """When this version or an earlier one began to wait; 0 = not waiting."""
    is_done: bool = False
    has_looked: bool = False
    """Whether the early look is over; a wait has one, whatever is marked meanwhile."""

    def covers(self, uid: str, version: str) -> bool:
        """Return whether this is the progress of a version, or of a later one.

        A later one is our own write, which the watch has not delivered yet.
        """
        if self.uid != uid:
            return False
        is_later = number_of(self.version) > number_of(version)
        return is_later or self.version == version

    def follow(self, earlier: "Progress") -> None:
        """Continue the wait of an earlier mark, whose change is still pending."""
        self.waiting_since_s = earlier.waiting_since_s
        self.has_looked = earlier.has_looked
        self.pace = earlier.pace.changed()

    def looks_early(self, now_s: float, early_s: float) -> bool:
        """Return, once for each wait, whether the early look is due."""
        if self.has_looked or not early_s or not self.has_waited(now_s, early_s):
            return False
        self.has_looked = True
        return True

    def poll(self, now_s: float, pause_s: float = 0.0) -> float:
        """Try again after a pause, by default soon; return the pause.

        The pauses grow with the time waited.
        """
        if pause_s:
            return self.pace.wait(now_s, pause_s)
        self.polls += 1
        late_s = (now_s - self.marked_s) / _LATE_AT_MOST
        return self.pace.wait(now_s, max(_POLLS.pause_s(self.polls), late_s))

    def has_waited(self, now_s: float, limit_s: float) -> bool:
        """Return whether the oldest pending mark has waited long enough.

        New marks do not restart the wait: a series of updates that other webhooks
        reject must not delay an accepted one.
        """
        self.waiting_since_s = self.waiting_since_s or now_s
        return now_s - self.waiting_since_s >= limit_s

    def is_over(self, now_s: float, limit_s: float) -> bool:
        """Return whether the newest mark has waited long enough, too."""
        return now_s - self.marked_s >= limit_s


@dataclass(slots=True)
class Lane:
    """The requests and tasks that wait for one trigger."""

    requests: set[Key] = field(default_factory=set)
    tasks: dict[tuple[str, str, str], tuple[Task, Pace]] = field(default_factory=dict)
    """Tasks of policy events, and of changes that the watches report."""
