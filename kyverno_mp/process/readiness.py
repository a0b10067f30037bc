"""Decide from the reports of the processes whether this pod may get reviews.

Room: process. Takes: the supervisor status, the leader's status, views of pages. Gives:
Health. Next: process/health.py. May touch: nothing; the clock is passed in.
Source: docs/architecture.md 2; docs/behaviour/controllers 2.1 (liveness, readiness).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kyverno_mp.process.supervisor_status import SupervisorStatus

WEBHOOK = "webhook"
LEADER = "leader"
_SILENT_NS_MAX = 10_000_000_000


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The report of one live webhook worker; ``heartbeat_ns`` 0: no heartbeat yet."""

    name: str
    generation: int
    heartbeat_ns: int


@dataclass(frozen=True, slots=True)
class Health:
    """The problems of each sort; an empty tuple means healthy."""

    unready: tuple[str, ...]
    """Why the pod must not get reviews now."""
    unlive: tuple[str, ...]
    """Why the pod must restart: only problems that a restart may fix."""
    degraded: tuple[str, ...]
    """Other problems, listed on /healthz; reviews are still served."""


def judge(
    supervisor: SupervisorStatus | None,
    published: int,
    workers: Sequence[WorkerFacts],
    *,
    expected: int,
    now_ns: int,
) -> Health:
    """Return the pod's health from all facts.

    When the leader is in a crash loop, the last snapshot stays in force and reviews
    continue: the pod is degraded, but stays in service and does not restart.
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
        unready.append(f"{len(workers)} of {expected} webhook workers run")
    for worker in workers:
        if worker.generation != published:
            unready.append(
                f"{worker.name} serves generation {worker.generation},"
                f" published is {published}"
            )
        elif worker.heartbeat_ns and now_ns - worker.heartbeat_ns > _SILENT_NS_MAX:
            unready.append(f"{worker.name} is silent")
    words = tuple(f"{name} is in a crash loop" for name in loops)
    return Health(
        unready=tuple(unready),
        unlive=tuple(w for w, n in zip(words, loops, strict=True) if n == WEBHOOK),
        degraded=words,
    )


def generation_served(workers: Sequence[WorkerFacts]) -> int:
    """Return the lowest generation that the workers serve, 0 without workers."""
    return min((worker.generation for worker in workers), default=0)
