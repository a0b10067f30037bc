"""Write the objects of one task; continue after an object that the API server rejects.

Room: background. Takes: a function that writes one object. Gives: Writes,
write_then_delete. Next: background/generate/writing.py, background/generating/run.py.
Source: docs/background.md (requests, contested objects).
"""

from collections.abc import Callable

from kyverno_mp.background.outcome import APPLIED, Outcome, contested
from kyverno_mp.background.refusals import Refusals, namespace_may_end
from kyverno_mp.background.update_request import Task


class Writes:
    """The writes of one task; not thread-safe."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._refusals = Refusals()
        self._pauses: list[float] = []

    def add(self, write: Callable[[], float | None]) -> bool:
        """Write an object; return False if it was not written.

        ``write`` returns the pause until the next write if other writers keep changing
        the object, 0 without a pause, None for an object that is not ours.

        Raises: the errors of ``write``, except rejections, which ``check`` raises.
        """
        pause_s: float | None = None
        with self._refusals.kept(), namespace_may_end(self._task):
            pause_s = write()
        if pause_s is None:
            return False
        self._pauses.append(pause_s)
        return True

    def check(self) -> None:
        """Raise the first rejection, if any."""
        self._refusals.raise_first()

    def outcome(self) -> Outcome:
        """Return the outcome of the task, which waits for the shortest pause."""
        pauses = [pause_s for pause_s in self._pauses if pause_s]
        return contested(min(pauses)) if pauses else APPLIED


def write_then_delete(
    write: Callable[[], Outcome], delete: Callable[[], object]
) -> Outcome:
    """Run both steps, even if the API server rejects a part of the first one.

    Raises: the first rejection after both steps; other errors at once.
    """
    written, refusals = APPLIED, Refusals()
    with refusals.kept():
        written = write()
    with refusals.kept():
        delete()
    refusals.raise_first()
    return written
