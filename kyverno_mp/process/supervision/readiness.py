"""Decide from the reports of the processes whether this pod is ready for reviews.

Room: process. Takes: the supervisor status, the leader's status, views of pages, the
health of pools. Gives: Health. Next: process/roles/health.py. May touch: nothing; the
clock is passed in.
Source: docs/architecture.md 2; docs/behaviour/controllers 2.1 (liveness, readiness).

A problem of a pool never makes a pod with a webhook unready, only a pod without one. A
problem of the dashboard never makes a pod unready.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.pool.health import PoolHealth
from kyverno_mp.process.supervision.status import SupervisorStatus
from kyverno_mp.snapshot.room import FolderRoom
from kyverno_mp.snapshot.undecoded import undecoded_problem

WEBHOOK = "webhook"
AUTHORIZER = "authorizer"
LEADER = "leader"
DASHBOARD = "dashboard"
_SERVING = (WEBHOOK, AUTHORIZER)
_SILENT_NS_MAX = 10_000_000_000
_LAGGING_NS_MAX = 5_000_000_000
"""After every policy change, a worker takes a moment; with thousands of policies, all
replicas take it at the same time. A worker without progress for longer than this is
stuck."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The report of one live webhook worker.

    ``generation`` is 0 if it serves none yet; ``heartbeat_ns`` is 0 before the first
    heartbeat. ``lagging_ns`` is the time for which it is known to serve this generation
    although a newer one was published.
    """

    name: str
    generation: int
    heartbeat_ns: int
    lagging_ns: int = 0
    undecoded: int = 0
    """Policies whose records it cannot decode."""


@dataclass(frozen=True, slots=True)
class Health:
    """The problems by their effect; an empty tuple means healthy."""

    unready: tuple[str, ...]
    """Why the pod must not receive reviews now."""
    unlive: tuple[str, ...]
    """Why the pod must restart: only problems that a restart can fix."""
    degraded: tuple[str, ...]
    """Other problems, listed on /healthz; reviews are still served."""


def pod_health(
    supervisor: SupervisorStatus | None,
    published: int,
    workers: Sequence[WorkerFacts],
    *,
    expected: int,
    now_ns: int,
) -> Health:
    """Return the pod's health from all facts except its pools.

    ``expected`` is the number of webhook workers, 0 in a pod without a webhook. When
    the leader is in a crash loop, the last snapshot stays in force and reviews
    continue. The pod is degraded, but stays in service and does not restart.
    """
    loops = (
        tuple(p.name for p in supervisor.processes if p.crash_loop)
        if supervisor
        else ()
    )
    unready = []
    if supervisor is None:
        unready.append("the supervisor has not reported")
    elif supervisor.draining:
        unready.append("draining")
    if published == 0:
        unready.append("no snapshot has been published")
    if len(workers) < expected:
        unready.append(f"{len(workers)} of {expected} workers run")
    for worker in workers:
        is_late = worker.lagging_ns > _LAGGING_NS_MAX
        if worker.generation != published and (is_late or not worker.generation):
            unready.append(
                f"{worker.name} serves generation {worker.generation},"
                f" published is {published}"
            )
        elif worker.heartbeat_ns and now_ns - worker.heartbeat_ns > _SILENT_NS_MAX:
            unready.append(f"{worker.name} is silent")
    words = tuple(f"{name} is in a crash loop" for name in loops)
    undecoded = undecoded_problem(max((one.undecoded for one in workers), default=0))
    if not expected:
        # No other part of the service needs the dashboard.
        unready.extend(w for w, n in zip(words, loops, strict=True) if n != DASHBOARD)
    return Health(
        unready=tuple(unready),
        unlive=tuple(w for w, n in zip(words, loops, strict=True) if n in _SERVING),
        degraded=(*words, *undecoded),
    )


def without_policies(policies: Sequence[PolicyStatus]) -> tuple[str, ...]:
    """Return why a pod without a cluster admits everything, () if it does not.

    In a cluster, the API server and other replicas still have valid policies.
    """
    if not policies or any(
        policy.ready or policy.in_force or policy.rules for policy in policies
    ):
        return ()
    return (f"all {len(policies)} policies are rejected, none is in force",)


def without_room(room: FolderRoom) -> tuple[str, ...]:
    """Return why the runtime folder takes no new policies, () if it does.

    The status files may be old then, so this does not depend on them.
    """
    if not room.is_full:
        return ()
    free, size = room.free >> 10, room.size >> 10
    text = "the runtime folder is full, so the last policies and results stay in force"
    return (f"{text}: {free} KiB of {size} KiB are free",)


class LagTimes:
    """Measures how long each worker has served a generation that is not the newest.

    If a worker serves the same generation at two observations, it made no progress. If
    it serves a different one, it did, and its time restarts.
    """

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int]] = {}
        """Process id -> generation, and when the process was first observed lagging."""

    def lagging_ns(
        self, generations: Mapping[int, int], published: int, *, now_ns: int
    ) -> Mapping[int, int]:
        """Return the lag of each process; ``generations`` is keyed by process id."""
        known = self._since
        self._since = {
            pid: known[pid]
            if pid in known and known[pid][0] == generation
            else (generation, now_ns)
            for pid, generation in generations.items()
            if generation != published
        }
        return {pid: now_ns - since for pid, (_, since) in self._since.items()}


def with_pools(
    health: Health, pools: Mapping[str, PoolHealth | None], *, expected: int
) -> Health:
    """Add the problems of this pod's pools; None if a pool has not reported yet."""
    silent = tuple(
        f"{name} has not reported" for name, pool in pools.items() if pool is None
    )
    wrong = tuple(
        f"{name}: {reason}"
        for name, pool in pools.items()
        for reason in (pool.reasons if pool else ())
    )
    unready = health.unready if expected else (*health.unready, *silent)
    return replace(
        health, unready=unready, degraded=(*health.degraded, *silent, *wrong)
    )


def generation_served(workers: Sequence[WorkerFacts]) -> int:
    """Return the lowest generation that workers serve, 0 without workers."""
    return min((worker.generation for worker in workers), default=0)
