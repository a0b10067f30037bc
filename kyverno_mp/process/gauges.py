"""Measure the processes for each scrape of the metrics.

Room: process. Takes: views of pages, the supervisor status, the leader's status. Gives:
gauges of telemetry.families.GAUGED. Next: process/roles/health.py.
May touch: /proc, through psutil.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from kyverno_mp import __version__
from kyverno_mp.leader.status import (
    OVER_SHARE,
    OVER_SOURCES,
    UNLINKED,
    PolicyStatus,
    Status,
)
from kyverno_mp.process.supervision.status import SupervisorStatus
from kyverno_mp.snapshot.room import NO_ROOM, FolderRoom
from kyverno_mp.telemetry.families import (
    AGE,
    CERTIFICATE_ENDS,
    CPU,
    CRASH_LOOP,
    EVENTS_DROPPED,
    FOLDER_FREE,
    FOLDER_SIZE,
    GAUGED,
    GENERATION,
    HELD,
    INFO,
    LARGE_EXCEPTIONS,
    LINKED,
    POLICIES,
    POLICIES_AGE,
    PROBLEMS,
    PSS,
    QUEUE_DEPTH,
    QUEUE_DROPS,
    READY,
    REFUSED,
    RESTARTS,
    RULE_INFO,
    SERVED,
    SIZE,
    UNDECODED_POLICIES,
    UNLINKED_POLICIES,
    UNPUBLISHED_SEGMENTS,
    USS,
    Family,
)
from kyverno_mp.telemetry.page import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Facts about the whole pod; 0 means unknown and is not exported."""

    supervisor: SupervisorStatus | None
    is_ready: bool
    certificate_ends_s: float
    """Unix time at which the served certificate expires."""
    policies_heard_ns: int
    """When the API server last confirmed the policies, monotonic."""
    room: FolderRoom = NO_ROOM
    """Of the runtime folder."""


Gauges = dict[Family, dict[tuple[str, ...], float]]


def measure(
    pages: Iterable[View],
    status: Status,
    pod: Pod,
    *,
    now_ns: int,
    rule_series_max: int,
    queues: Mapping[str, Sequence[str]],
) -> Gauges:
    """Return all gauges. Cost: a few milliseconds per process, to read its memory map.

    ``queues`` maps each role to the names of its queues.
    """
    gauges: Gauges = {family: {} for family in GAUGED}
    gauges[INFO] = {(__version__,): 1.0}
    gauges[READY][()] = float(pod.is_ready)
    if pod.certificate_ends_s:
        gauges[CERTIFICATE_ENDS][()] = pod.certificate_ends_s
    if pod.policies_heard_ns:
        gauges[POLICIES_AGE][()] = max(0, now_ns - pod.policies_heard_ns) / 1e9
    if pod.room.size:
        gauges[FOLDER_SIZE][()] = pod.room.size
        gauges[FOLDER_FREE][()] = pod.room.free
    living = [page for page in pages if page.alive()]
    _of_pages(gauges, living, queues)
    _of_status(gauges, status, now_ns, rule_series_max)
    processes = {page.name: page.pid for page in living}
    supervisor = pod.supervisor
    if supervisor is not None:
        processes["supervisor"] = supervisor.pid
        gauges[REFUSED][()] = supervisor.refused
        for state in supervisor.processes:
            gauges[RESTARTS][(state.name,)] = state.restarts
            gauges[CRASH_LOOP][(state.name,)] = float(state.crash_loop)
            if state.pid and state.pid not in processes.values():
                processes[state.name] = state.pid
    _of_processes(gauges, processes)
    return gauges


def _of_pages(
    gauges: Gauges, living: Sequence[View], queues: Mapping[str, Sequence[str]]
) -> None:
    gauges[EVENTS_DROPPED][()] = sum(
        page.gauge("events_queue_dropped") for page in living
    )
    gauges[UNPUBLISHED_SEGMENTS][()] = sum(
        page.gauge("unpublished_segments") for page in living
    )
    for page in living:
        for queue in queues.get(page.role, ()):
            depth = page.gauge(f"{queue}_queue_depth")
            dropped = page.gauge(f"{queue}_queue_dropped")
            gauges[QUEUE_DEPTH][page.name, queue] = depth
            gauges[QUEUE_DROPS][page.name, queue] = dropped
        if page.role == "webhook":
            gauges[SERVED][(page.name,)] = page.gauge("generation")
            gauges[LINKED][(page.name,)] = page.gauge("linked_rules")
            gauges[HELD][(page.name,)] = page.gauge("held_bytes")
            undecoded = page.gauge("undecoded_policies")
            gauges[UNDECODED_POLICIES][(page.name,)] = undecoded


def _of_status(
    gauges: Gauges, status: Status, now_ns: int, rule_series_max: int
) -> None:
    gauges[GENERATION][()] = status.generation
    gauges[SIZE][()] = status.snapshot_bytes
    gauges[PROBLEMS][()] = len(status.problems)
    if status.generation:
        gauges[AGE][()] = max(0, now_ns - status.published_ns) / 1e9
    gauges[POLICIES] = {("true",): 0.0, ("false",): 0.0}
    gauges[UNLINKED_POLICIES][()] = sum(
        policy.code in (UNLINKED, OVER_SHARE, OVER_SOURCES)
        for policy in status.policies
    )
    gauges[LARGE_EXCEPTIONS][()] = sum(
        policy.large_exceptions for policy in status.policies
    )
    for policy in status.policies:
        gauges[POLICIES][(str(policy.ready).lower(),)] += 1
        for rule in policy.rules:
            labels = rule_labels(policy, rule.name, rule.rule_type)
            if len(gauges[RULE_INFO]) >= rule_series_max:
                labels = _overflown(labels)
            gauges[RULE_INFO][labels] = 1.0


def rule_labels(policy: PolicyStatus, rule: str, rule_type: str) -> tuple[str, ...]:
    """Return the values of RULE_INFO's labels."""
    return (
        policy.namespace or "-",
        policy.name,
        str(policy.ready).lower(),
        policy.mode,
        "namespaced" if policy.namespace else "cluster",
        str(policy.background).lower(),
        rule,
        rule_type,
    )


def _overflown(labels: tuple[str, ...]) -> tuple[str, ...]:
    hidden = {"policy_namespace", "policy_name", "rule_name"}
    return tuple(
        "_overflow" if name in hidden else value
        for name, value in zip(RULE_INFO.labels, labels, strict=True)
    )


def _of_processes(gauges: Gauges, processes: Mapping[str, int]) -> None:
    for name, pid in processes.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory = process.memory_full_info()
                times = process.cpu_times()
        except psutil.Error:
            continue
        gauges[PSS][(name,)] = getattr(memory, "pss", memory.uss)  # macOS has no PSS
        gauges[USS][(name,)] = memory.uss
        gauges[CPU][(name,)] = times.user + times.system
