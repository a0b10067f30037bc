"""Judge from the processes' own words whether this pod may get reviews.

Room: process. Takes: the board, the leader's status, views of pages. Gives: Health.
Next: process/health.py. May touch: nothing; the clock is passed in.
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
    """What one living webhook worker says; ``heartbeat_ns`` 0 = it has not yet."""

    name: str
    generation: int
    heartbeat_ns: int


@dataclass(frozen=True, slots=True)
class Health:
    """Reasons against each; an empty tuple means healthy."""

    unready: tuple[str, ...]
    """Against getting reviews now."""
    unlive: tuple[str, ...]
    """Against leaving this pod as it is: only what a restart of the pod may cure."""
    degraded: tuple[str, ...]
    """Anything amiss, told on /healthz, that leaves reviews served."""


def judge(
    supervisor: SupervisorStatus | None,
    published: int,
    workers: Sequence[WorkerFacts],
    *,
    expected: int,
    now_ns: int,
) -> Health:
    """Weigh all facts.

    A crash loop of the leader leaves the last snapshot in force: reviews go on, so it
    degrades and neither takes the pod out of service nor restarts it.
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
    """Return the generation that every worker serves at least, 0 without workers."""
    return min((worker.generation for worker in workers), default=0)
