"""Resolve names within a deadline, even if the name server is slow.

Room: egress. Takes: a resolver that may hang, host names. Gives: Lookups.
Next: egress/registries.py, egress/services.py.
May touch: its own threads; DNS through the resolver.
Source: docs/behaviour/lessons 4.2 rows 5-8 (no wait without a bound).

The C library's resolver has no timeout, and the author of a Pod chooses the name. So
each look-up runs in a thread, and each caller waits for it until its own deadline.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from kyverno_mp.errors import DeadlinePassed, KubeUnavailable, without_frames
from kyverno_mp.limits import LOOKUP_S_MAX, REGISTRY_LOOKUPS_MAX


class Lookups:
    """DNS look-ups of one process; threads share a running look-up of the same name."""

    def __init__(self, resolve: Callable[[str], list[str]]) -> None:
        self._resolve = resolve
        self._places = threading.BoundedSemaphore(REGISTRY_LOOKUPS_MAX)
        self._running: dict[str, Future[list[str]]] = {}
        self._lock = threading.Lock()

    def __call__(self, host: str, deadline_ns: int) -> list[str]:
        """Return the addresses.

        Raises: DeadlinePassed, and the resolver's errors.
        """
        try:
            return self._begun(host, deadline_ns).result(_left_s(deadline_ns))
        except FutureTimeout:
            raise _late(host) from None

    def soon(self, host: str) -> list[str]:
        """Return the addresses, for a caller without a deadline.

        Raises: KubeUnavailable (``egress.dns``), and the resolver's errors.
        """
        try:
            return self(host, time.monotonic_ns() + LOOKUP_S_MAX * 10**9)
        except DeadlinePassed as error:
            raise KubeUnavailable("egress.dns", error.message) from error

    def _begun(self, host: str, deadline_ns: int) -> "Future[list[str]]":
        with self._lock:
            running = self._running.get(host)
        if running is not None:
            return running
        if not self._places.acquire(timeout=_left_s(deadline_ns)):
            raise _late(host)
        lookup: Future[list[str]] = Future()
        with self._lock:
            running = self._running.setdefault(host, lookup)
        if running is not lookup:
            self._places.release()
            return running
        thread = threading.Thread(
            target=self._look_up, args=(host, lookup), name="lookup", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # E.g. the container may have no more threads now.
            self._end(host)
            lookup.set_exception(OSError("no thread for the look-up"))
        return lookup

    def _look_up(self, host: str, lookup: "Future[list[str]]") -> None:
        try:
            addresses = self._resolve(host)
        except Exception as error:  # noqa: BLE001 - raised in those that wait
            self._end(host)
            lookup.set_exception(without_frames(error))
        else:
            self._end(host)
            lookup.set_result(addresses)

    def _end(self, host: str) -> None:
        with self._lock:
            del self._running[host]
        self._places.release()


def _left_s(deadline_ns: int) -> float:
    return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)


def _late(host: str) -> DeadlinePassed:
    message = f"lookup {host}: no answer in time"
    return DeadlinePassed("registry.deadline", message)
