"""Hold a Lease among replicas, and stop writing before it expires.

Room: kube. Takes: a Lease's name, this replica's name, Objects. Gives: Election, whose
``guard`` raises LeaseLost. Next: leader/control/run.py, pool/coordinator.py.
May touch: the API server through kube/apply.py, the clock, one thread.
Source: docs/behaviour/controllers 8 (names, 12 s, 2 s); client-go tools/leaderelection.

The holder can write until its fence: the time when the last renewal was *sent* plus the
lease's duration, less a margin. Other replicas can take the lease only after they saw
the same renewal unchanged for the whole duration, which began later. Each replica uses
its own monotonic clock, which continues while a process is stopped or a machine sleeps,
so clocks do not have to agree.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
LEASES: Final = Resource(group="coordination.k8s.io", version="v1", plural="leases")
RETRY_S: Final = 2.0
_DURATION_RETRIES: Final = 6
_MARGIN_RETRIES: Final = 1
_TIMEOUT_RETRIES: Final = 2


def boot_ns() -> int:
    """Return the time since boot, sleep included. Unit: nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One lease: its name, the identity of this replica, and the retry period."""

    namespace: str
    name: str
    identity: str
    retry_s: float = RETRY_S

    @property
    def duration_s(self) -> float:
        """Other replicas wait this long to take the lease (upstream: six retries)."""
        return self.retry_s * _DURATION_RETRIES

    @property
    def timeout_s(self) -> float:
        """Time-out of one call; short enough that a second call can keep the lease."""
        return self.retry_s * _TIMEOUT_RETRIES

    @property
    def margin_s(self) -> float:
        """The holder stops writing this long before the lease expires."""
        return self.retry_s * _MARGIN_RETRIES


class Election:
    """This replica's participation in one lease; ``step`` tries once."""

    def __init__(
        self,
        objects: Objects,
        terms: Terms,
        clock_ns: Callable[[], int] = boot_ns,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._objects = objects
        self._terms = terms
        self._clock_ns = clock_ns
        self._wall = wall
        self._fence_ns = 0
        self._written: Json | None = None
        """The Lease as this replica stored it last."""
        self._seen: tuple[str, str, str] = ("", "", "")
        self._seen_ns = 0
        self.terms_held = 0
        """How often this replica became the holder."""
        self.last_error = ""
        """Why the last attempt failed, "" after a success."""

    def holds(self) -> bool:
        """Return whether this replica holds the lease and can write now."""
        return self._clock_ns() < self._fence_ns

    def guard(self) -> None:
        """Raise LeaseLost unless this replica holds the lease."""
        if not self.holds():
            raise LeaseLost("kube.lease_lost", f"lease {self._terms.name} is not held")

    def step(self) -> bool:
        """Take or renew the lease once; return whether it is held.

        After a failure, the lease is held until its fence. Raises: nothing.
        """
        started_ns = self._clock_ns()
        try:
            held = self._try_twice(started_ns)
        except DependencyError as error:
            self.last_error = error.message
            _log.warning("lease %s: %s", self._terms.name, error.message)
            return self.holds()
        self.last_error = ""
        if not held:
            self._fence_ns = 0
            return False
        if not self.holds():
            self.terms_held += 1
            _log.info("lease %s is held by this replica", self._terms.name)
        left_s = self._terms.duration_s - self._terms.margin_s
        self._fence_ns = started_ns + int(left_s * 1e9)
        return self.holds()

    def release(self) -> None:
        """Release the lease so that another replica can take it at once."""
        self._fence_ns = 0
        terms = self._terms

        def edit(raw: Json) -> Json | None:
            spec = raw.get("spec") or {}
            if spec.get("holderIdentity") != terms.identity:
                return None
            spec.update(holderIdentity="", leaseDurationSeconds=1)
            spec["renewTime"] = self._now()
            return {**raw, "spec": spec}

        try:
            self._objects.change(LEASES, (terms.namespace, terms.name), edit)
        except DependencyError as error:
            _log.warning("cannot release lease %s: %s", terms.name, error.message)

    def run(self, stopping: threading.Event) -> None:
        """Campaign until ``stopping`` is set, then release the lease."""
        while not stopping.is_set():
            self.step()
            stopping.wait(self._terms.retry_s)
        if self.holds():
            self.release()

    def _try_twice(self, started_ns: int) -> bool:
        """Try again after a conflict, which our own repeated write may have caused."""
        if self._is_renewed():
            return True
        try:
            return self._try(started_ns)
        except KubeConflict:
            pass
        try:
            return self._try(started_ns)
        except KubeConflict:
            return False

    def _is_renewed(self) -> bool:
        """Renew what this replica stored last; return whether it was still that.

        PERF: one call for a renewal. The write is conditional on the object's version.
        """
        known, self._written = self._written, None
        if known is None or not self.holds():
            return False
        spec = self._renewed(known["spec"], self._terms.identity)
        try:
            self._written = self._objects.replace(LEASES, {**known, "spec": spec})
        except (KubeConflict, KubeNotFound):
            return False
        return True

    def _try(self, started_ns: int) -> bool:
        terms = self._terms
        found = self._objects.find(LEASES, (terms.namespace, terms.name))
        if found is None:
            self._written = self._objects.create(LEASES, self._new())
            return True
        spec = found.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder not in ("", terms.identity) and not self._may_take(spec, started_ns):
            return False
        renewed = {**found, "spec": self._renewed(spec, holder)}
        self._written = self._objects.replace(LEASES, renewed)
        return True

    def _may_take(self, spec: Json, now_ns: int) -> bool:
        """Return whether the holder has not renewed for the whole lease duration."""
        sight = (
            str(spec.get("holderIdentity")),
            str(spec.get("renewTime")),
            str(spec.get("leaseTransitions")),
        )
        if sight != self._seen:
            self._seen, self._seen_ns = sight, now_ns
            return False
        seconds = spec.get("leaseDurationSeconds")
        duration_s = float(seconds) if type(seconds) is int else self._terms.duration_s
        return now_ns - self._seen_ns >= duration_s * 1e9

    def _renewed(self, spec: Json, holder: str) -> Json:
        terms = self._terms
        now = self._now()
        renewed = {
            **spec,
            "holderIdentity": terms.identity,
            "leaseDurationSeconds": round(terms.duration_s),
            "renewTime": now,
        }
        if holder != terms.identity:
            renewed["acquireTime"] = now
            renewed["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        return renewed

    def _new(self) -> Json:
        terms = self._terms
        now = self._now()
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": terms.name, "namespace": terms.namespace},
            "spec": {
                "holderIdentity": terms.identity,
                "leaseDurationSeconds": round(terms.duration_s),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }

    def _now(self) -> str:
        """Return the current time as a MicroTime."""
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
