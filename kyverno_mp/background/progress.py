"""Keep the requests and tasks of each trigger, and the progress of each request.

Room: background. Takes: nothing. Gives: Lane, Progress. Next: background/requests.py.
May touch: nothing outside its arguments.
Source: docs/background.md (requests).
"""

from dataclasses import dataclass, field

from kyverno_mp.background.pacing import Pace
from kyverno_mp.background.update_request import Task
from kyverno_mp.kube.resource import Key


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


@dataclass(slots=True)
class Lane:
    """The requests and tasks that wait for one trigger."""

    requests: set[Key] = field(default_factory=set)
    tasks: dict[tuple[str, str, str], tuple[Task, Pace]] = field(default_factory=dict)
    """Tasks of policy events, and of changes that the watches report."""
