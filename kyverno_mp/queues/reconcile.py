"""Run reconcilers: take a key from the work queue, reconcile it, requeue it.

Room: queues. Takes: a WorkQueue of Requests, a Reconciler for each controller. Gives:
Controllers, whose ``work`` is the body of a worker thread.
Next: leader/control/wire.py, the pools. May touch: the log.
Source: controller-runtime pkg/reconcile, pkg/controller.

A reconciler gets a key, never an event: it reads the current state and changes it to
the desired state. A key that is added or processed twice is therefore harmless.

An unexpected exception is logged with its traceback and counted, and the key is retried
after a growing pause. Other keys are processed meanwhile.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.telemetry.traces import root

_log = logging.getLogger(__name__)
_ERROR_PAUSES: Final = Backoff(least_s=1.0, most_s=300.0)


class Request(NamedTuple):
    """A request to reconcile one key of a controller."""

    controller: str
    key: str


class Result(NamedTuple):
    """When to process a key again.

    ``after_s``: the resync after a success. ``retry``: the reconcile is incomplete; the
    key is retried after its back-off, which grows with each retry.
    """

    after_s: float | None = None
    retry: bool = False


class Reconciler(Protocol):
    """The interface of a controller."""

    def reconcile(self, key: str) -> Result:
        """Bring the objects of the key to their desired state.

        Raises: DependencyError, LeaseLost: the key is retried after its back-off.
        """


def _uncounted(_controller: str, _requeues: int | None) -> None:
    """Ignore the count."""


def _uncounted_defect(_controller: str) -> None:
    """Ignore the defect."""


def _outcome(result: Result | None) -> str:
    if result is None:
        return "defect"
    return "retried" if result.retry else "done"


class Controllers:
    """Reconcilers that share one queue; several worker threads may run them."""

    def __init__(
        self,
        queue: WorkQueue[Request],
        reconcilers: Mapping[str, Reconciler],
        count: Callable[[str, int | None], None] = _uncounted,
        on_defect: Callable[[str], None] = _uncounted_defect,
    ) -> None:
        """``count`` is called after each reconcile with the name of its controller.

        Its second argument is the number of consecutive failures if the key is retried,
        None without a retry. ``on_defect`` is called after each unexpected exception.
        """
        self._queue = queue
        self._reconcilers = reconcilers
        self._count = count
        self._on_defect = on_defect
        self._defects: dict[Request, int] = {}
        """Consecutive unexpected exceptions, by key."""

    def work(self) -> None:
        """Process keys until the queue is shut down."""
        while (request := self._queue.get()) is not None:
            self._process(request)

    def work_due(self) -> int:
        """Process the keys that are due now, without waiting; return their number."""
        count = 0
        while (request := self._queue.get(0)) is not None:
            self._process(request)
            count += 1
        return count

    def _process(self, request: Request) -> None:
        try:
            with root("reconcile", {"kyverno.controller": request.controller}) as trace:
                result = self._reconcile(request)
                if trace is not None:
                    trace.attributes["kyverno.result"] = _outcome(result)
            if result is None:
                return
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

    def _reconcile(self, request: Request) -> Result | None:
        """Reconcile a key; return None after an unexpected exception."""
        try:
            result = self._reconcilers[request.controller].reconcile(request.key)
        except LeaseLost:
            return Result(retry=True)
        except DependencyError as error:
            _log.warning("%s: %s", request.controller, error.message)
            return Result(retry=True)
        except Exception:  # noqa: BLE001 - a dead thread would stop every controller
            self._put_off(request)
            return None
        self._defects.pop(request, None)
        return result

    def _put_off(self, request: Request) -> None:
        """Log and count an unexpected exception; retry after a growing pause."""
        failures = self._defects[request] = self._defects.get(request, 0) + 1
        pause_s = _ERROR_PAUSES.pause_s(failures)
        _log.exception(
            "%s: unexpected error with key %s, trying again in %.0f s",
            *(request.controller, request.key, pause_s),
        )
        self._on_defect(request.controller)
        self._queue.add_after(request, pause_s)
