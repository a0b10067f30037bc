"""Hold a Lease among replicas, and stop writing before it expires.

Room: kube. Takes: a Lease's name, this replica's name, a Client. Gives: Election, whose
``guard`` raises LeaseLost. Next: leader/control/run.py, pool/coordinator.py.
May touch: the API server through kube/apply.py, the clock, one thread.
Source: docs/behaviour/controllers 8 (names, 12 s, 2 s); client-go tools/leaderelection.

The holder can write until its fence: the time when the last renewal was *sent* plus the
lease's duration, less a margin. Other replicas can take the lease only after they saw
the same renewal unchanged for the whole duration, which began later. Each replica uses
its own monotonic clock, which continues while a process is stopped or a machine sleeps,
so clocks do not have to agree.

The holder renews at half of the duration. The others do not ask: they watch the Lease,
and read it before they take it. Between two attempts, only the watch, its failures and
``stop`` wake the thread. So a watch that is late can delay a take-over, but
cannot cause one. Without the permission to watch, they read it in each retry period.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.followed import named, version_number
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.settings.machine import boot_ns
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
LEASES: Final = Resource(group="coordination.k8s.io", version="v1", plural="leases")
RETRY_S: Final = 2.0
HOLDER: Final = "kyverno-mp.io/holder"
"""Annotation of a Lease: the holder's identity, if it is a pod of ours.

KYVERNO: another program also writes the name of its pod, which can look like ours. It
keeps the annotations, so this one then names another pod."""
_DURATION_RETRIES: Final = 6
_MARGIN_RETRIES: Final = 1
_RENEW_RETRIES: Final = 3
_TIMEOUT_RETRIES: Final = 1.5
_FAILED_RETRIES: Final = 0.25


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
    def renew_s(self) -> float:
        """The holder renews this long after its last renewal was sent."""
        return self.retry_s * _RENEW_RETRIES

    @property
    def timeout_s(self) -> float:
        """Time-out of one call; short enough that a second call can keep the lease."""
        return self.retry_s * _TIMEOUT_RETRIES

    @property
    def failed_s(self) -> float:
        """The pause after a renewal that failed, while the lease is held."""
        return self.retry_s * _FAILED_RETRIES

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
        watch: Informer[bytes] | None = None,
    ) -> None:
        """``watch``: of the Lease; ``run`` starts it. None: the Lease is polled."""
        self._objects = objects
        self._terms = terms
        self._clock_ns = clock_ns
        self._wall = wall
        self._fence_ns = 0
        self._written: Json | None = None
        """The Lease as this replica stored it last."""
        self._seen: tuple[str, str, str] = ("", "", "")
        self._seen_ns = 0
        self._watch = watch
        self._watched: tuple[str | None, Json] = (None, {})
        """The Lease's version ("" without one, None before the first look) and spec in
        the watch, when it was last looked at."""
        self._has_moved = False
        """Whether the watch has shown a change since the last attempt."""
        self._tried_ns = 0
        """When the last attempt began, or ended with a failure; 0: never."""
        self._woken = threading.Event()
        self._is_stopping = False
        self._on_term: list[Callable[[], None]] = []
        self._told_term = 0
        """The term at the last look of ``run``, 0 without the lease."""
        self.terms_held = 0
        """How often this replica became the holder."""
        self._foreign = ""
        """The holder that was seen last, if it is not a pod of ours."""
        self.last_error = ""
        """Why the last attempt failed, "" after a success."""

    @classmethod
    def watching(cls, client: Client, terms: Terms) -> "Election":
        """Return an election that watches the Lease while another replica holds it."""
        scope = named(LEASES, (terms.namespace, terms.name))
        objects = Objects(client.within(terms.timeout_s))
        return cls(objects, terms, watch=Informer(client, scope, whole))

    def holds(self) -> bool:
        """Return whether this replica holds the lease and can write now."""
        return self._clock_ns() < self._fence_ns

    @property
    def fence_s(self) -> float:
        """The time for which the lease is held without a renewal, 0 if it is not."""
        return max(0.0, (self._fence_ns - self._clock_ns()) / 1e9)

    @property
    def foreign_holder(self) -> str:
        """The pod of another program that holds the lease, "" if none was seen."""
        return "" if self.holds() else self._foreign

    def on_term(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the thread of ``run`` when a term has begun or ended.

        The end at a fence is noticed late, with the next attempt: see ``fence_s``.
        """
        self._on_term.append(callback)

    def guard(self) -> None:
        """Raise LeaseLost unless this replica holds the lease."""
        if not self.holds():
            raise LeaseLost("kube.lease_lost", f"lease {self._terms.name} is not held")

    def step(self) -> bool:
        """Take or renew the lease once; return whether it is held.

        After a failure, the lease is held until its fence. Raises: nothing.
        """
        started_ns = self._tried_ns = self._clock_ns()
        self._has_moved = False
        try:
            is_held = self._try_twice(started_ns)
        except DependencyError as error:
            self._tried_ns = self._clock_ns()
            self.last_error = error.message
            _log.warning("lease %s: %s", self._terms.name, error.message)
            return self.holds()
        self.last_error = ""
        if not is_held:
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

    def run(self) -> None:
        """Campaign until ``stop`` is called, then release the lease."""
        watch, wake = self._watch, self._woken.set
        if watch is not None:
            watch.on_notified(wake)
            watch.on_health(wake)
            watch.start()
        while True:
            self._woken.clear()
            if self._is_stopping:
                break
            if self.is_due():
                self.step()
            self._tell()
            self._woken.wait(self.pause_s())
        if self.holds():
            self.release()
        if watch is not None:
            watch.stop()

    def stop(self) -> None:
        """End ``run`` soon; any thread may call it."""
        self._is_stopping = True
        self._woken.set()

    def is_due(self) -> bool:
        """Return whether to ``step`` now; it makes no call."""
        return self._due_s() <= 0

    def pause_s(self) -> float:
        """Return the time to the next look if the watch shows nothing.

        The pause's clock stands while the machine sleeps, so pauses are short.
        """
        return max(0.0, min(self._due_s(), self._terms.retry_s))

    def _due_s(self) -> float:
        """Return when to ``step`` unless the watch changes; 0 or less: now."""
        if not self._tried_ns:
            return 0.0
        terms, now_ns = self._terms, self._clock_ns()
        passed_s = (now_ns - self._tried_ns) / 1e9
        if self.holds():
            if self.last_error:
                return terms.failed_s - passed_s
            return 0.0 if self._is_overwritten() else terms.renew_s - passed_s
        if self.last_error or not self._is_watched:
            return terms.retry_s - passed_s
        spec = self._watched_spec(now_ns)
        if spec.get("holderIdentity") in (None, "", terms.identity):
            # At once after a change; a late watch may show a release for long.
            return 0.0 if self._has_moved else terms.retry_s - passed_s
        return (_duration_ns(spec, terms) - (now_ns - self._seen_ns)) / 1e9

    def _tell(self) -> None:
        """Call the callbacks if a term has begun or ended."""
        term = self.terms_held if self.holds() else 0
        if term != self._told_term:
            self._told_term = term
            for callback in self._on_term:
                callback()

    @property
    def _is_watched(self) -> bool:
        watch = self._watch
        return watch is not None and watch.synced and not watch.failures

    def _is_overwritten(self) -> bool:
        """Return whether the watch shows that another client changed our Lease."""
        watch, written = self._watch, self._written
        if watch is None or written is None or not self._is_watched:
            return False
        version = watch.version_of((self._terms.namespace, self._terms.name))
        own_version = version_number(str(written["metadata"].get("resourceVersion")))
        if version:
            return version_number(version) > own_version
        return version_number(watch.notified_version) > own_version

    def _watched_spec(self, now_ns: int) -> Json:
        """Return the Lease in the watch, {} without one; note when it changed."""
        assert self._watch is not None
        key = (self._terms.namespace, self._terms.name)
        version, content = self._watch.entry(key) or ("", b"{}")
        if version != self._watched[0]:
            lease = msgspec.json.decode(content)
            spec = lease.get("spec") or {}
            self._watched = version, spec
            self._foreign = self._foreign_of(lease)
            self._has_moved = True
            self._see(spec, now_ns)
        return self._watched[1]

    def _try_twice(self, started_ns: int) -> bool:
        """Try again after a conflict, which our own repeated write may have caused."""
        if self._is_renewed():
            return True
        with contextlib.suppress(KubeConflict):
            return self._try(started_ns)
        try:
            return self._try(started_ns)
        except KubeConflict:
            return False

    def _is_renewed(self) -> bool:
        """Renew what this replica stored last; return whether it was still that.

        PERF: one call for a renewal. The write is conditional on the object's version.
        """
        stored, self._written = self._written, None
        if stored is None or not self.holds():
            return False
        spec = self._renewed(stored["spec"], self._terms.identity)
        try:
            self._written = self._objects.replace(LEASES, {**stored, "spec": spec})
        except (KubeConflict, KubeNotFound):
            return False
        return True

    def _try(self, started_ns: int) -> bool:
        terms = self._terms
        lease = self._objects.find(LEASES, (terms.namespace, terms.name))
        self._foreign = self._foreign_of(lease or {})
        if lease is None:
            self._written = self._objects.create(LEASES, self._new())
            return True
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder not in ("", terms.identity) and not self._may_take(spec, started_ns):
            return False
        annotations = lease["metadata"].get("annotations") or {}
        lease["metadata"]["annotations"] = {**annotations, HOLDER: terms.identity}
        renewed = {**lease, "spec": self._renewed(spec, holder)}
        self._written = self._objects.replace(LEASES, renewed)
        self._foreign = ""
        return True

    def _foreign_of(self, lease: Json) -> str:
        """Return the holder unless it is a pod of ours."""
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        annotations = (lease.get("metadata") or {}).get("annotations") or {}
        ours = (self._terms.identity, annotations.get(HOLDER))
        return "" if holder in ours else holder

    def _may_take(self, spec: Json, now_ns: int) -> bool:
        """Return whether the holder has not renewed for the whole lease duration."""
        if self._see(spec, now_ns):
            return False
        return now_ns - self._seen_ns >= _duration_ns(spec, self._terms)

    def _see(self, spec: Json, now_ns: int) -> bool:
        """Note the time of a renewal by another replica; return whether it is new."""
        holder, renewed = str(spec.get("holderIdentity")), str(spec.get("renewTime"))
        sight = holder, renewed, str(spec.get("leaseTransitions"))
        if sight == self._seen:
            return False
        self._seen, self._seen_ns = sight, now_ns
        return True

    def _renewed(self, spec: Json, holder: str) -> Json:
        terms, now = self._terms, self._now()
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
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {
                "name": terms.name,
                "namespace": terms.namespace,
                "annotations": {HOLDER: terms.identity},
            },
            "spec": {**self._renewed({}, ""), "leaseTransitions": 0},
        }

    def _now(self) -> str:
        """Return the current time as a MicroTime."""
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _duration_ns(spec: Json, terms: Terms) -> float:
    seconds = spec.get("leaseDurationSeconds")
    return (float(seconds) if type(seconds) is int else terms.duration_s) * 1e9
