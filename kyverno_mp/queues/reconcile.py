"""Run reconcilers: take a key from the work queue, reconcile it, let it come again.

Room: queues. Takes: a WorkQueue of Requests, a Reconciler for each controller. Gives:
Controllers, whose ``work`` is the body of a worker thread.
Next: leader/control/wire.py, the pools. May touch: the log.
Source: controller-runtime pkg/reconcile, pkg/controller.

A reconciler is given a key, never an event: it reads how things are, and makes them as
they are wanted. So what is added twice, or processed once too often, is harmless.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.queues.work_queue import WorkQueue

_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """What is to be reconciled: a key of one controller."""

    controller: str
    key: str


class Result(NamedTuple):
    """When a key is to come again by itself.

    ``after_s``: when all is well. ``retry``: not all could be done now; the key comes
    again after its back-off, which grows while that goes on.
    """

    after_s: float | None = None
    retry: bool = False


class Reconciler(Protocol):
    """One controller."""

    def reconcile(self, key: str) -> Result:
        """Make things as they are wanted.

        Raises: DependencyError, LeaseLost: the key comes again after its back-off.
        """


def _uncounted(_controller: str, _requeues: int | None) -> None:
    """Count nothing."""


class Controllers:
    """Reconcilers that share one queue; workers may run it side by side."""

    def __init__(
        self,
        queue: WorkQueue[Request],
        reconcilers: Mapping[str, Reconciler],
        count: Callable[[str, int | None], None] = _uncounted,
    ) -> None:
        """``count`` is called after each reconcile with the name of its controller.

        And with how often the key had failed in a row before, if it is to be retried,
        None if not.
        """
        self._queue = queue
        self._reconcilers = reconcilers
        self._count = count

    def work(self) -> None:
        """Process keys until the queue is shut down; a defect ends this thread."""
        while (request := self._queue.get()) is not None:
            self._process(request)

    def work_due(self) -> int:
        """Process what is due now, without waiting; return how many keys."""
        count = 0
        while (request := self._queue.get(0)) is not None:
            self._process(request)
            count += 1
        return count

    def _process(self, request: Request) -> None:
        try:
            result = self._reconcile(request)
            if result.retry:
                self._count(request.controller, self._queue.failures(request))
                self._queue.retry(request)
                return
            self._count(request.controller, None)
            self._queue.forget(request)
            if result.after_s is not None:
                self._queue.add_after(request, result.after_s)
        finally:
            self._queue.done(request)

    def _reconcile(self, request: Request) -> Result:
        try:
            return self._reconcilers[request.controller].reconcile(request.key)
        except LeaseLost:
            return Result(retry=True)
        except DependencyError as error:
            _log.warning("%s: %s", request.controller, error.message)
            return Result(retry=True)
