"""Continue when the API server rejects a part of the work; raise the error at the end.

Room: background. Takes: blocks that may be rejected. Gives: Refusals,
``namespace_may_end``. Next: background/generate/policy_events.py,
background/generate/writing.py, background/generate/lost.py.
Source: docs/background.md (requests).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kyverno_mp.background.outage import is_rejection
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import DependencyError, KubeNotFound, KubeRefused
from kyverno_mp.kube.translate import is_in_ending_namespace


class Refusals:
    """The rejections of one piece of work; not thread-safe."""

    def __init__(self) -> None:
        self._all: list[DependencyError] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def texts(self) -> list[str]:
        """The messages of the rejections, without duplicates."""
        return list(dict.fromkeys(refusal.message for refusal in self._all))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Suppress a rejection, a missing namespace or a failed webhook."""
        try:
            yield
        except DependencyError as error:
            if not is_rejection(error):
                raise
            self._all.append(error)

    def add(self, error: DependencyError) -> None:
        """Record an error that was caught elsewhere, if it is a rejection."""
        if is_rejection(error) and not isinstance(error, KubeNotFound):
            self._all.append(error)

    def raise_first(self) -> None:
        """Raise the first rejection, if any."""
        if self._all:
            raise self._all[0]


@contextmanager
def namespace_may_end(task: Task) -> Iterator[None]:
    """Suppress the error of a write to a namespace that is being deleted or gone.

    A generated object is deleted with its namespace. Without an event of the trigger, a
    missing namespace means the same, and not that it will be created soon.
    """
    try:
        yield
    except KubeRefused as error:
        if not is_in_ending_namespace(error):
            raise
    except KubeNotFound:
        if not task.synchronizes:
            raise
