"""Run the clean-up controller while this replica holds the lease.

Room: cleanup. Takes: CleanupDependencies, an event that stops it. Gives: ``run``.
Next: the process that holds the lease calls it. May touch: threads, the clock, the
log; the API server through modules of this room.
Source: docs/behaviour/controllers 7, 8; docs/pools.md 1.

The threads, and what each writes:
    caller       health, every few seconds
    informer-*   its cache; adds keys of policies, sets timers of objects
    cleanup      runs of policies: their status and deletions (a few threads each)
    ttl-watches  starts and stops informers of labelled objects
    ttl-delete   deletions of labelled objects
"""

import threading
import time
from typing import Final

import msgspec

from kyverno_mp.cleanup.access import OwnAccess
from kyverno_mp.cleanup.controller import NAME, CleanupController, key_text
from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.kinds import Kinds
from kyverno_mp.cleanup.policy import (
    CLUSTER_POLICIES,
    POLICIES,
    StoredPolicy,
    stored_policy,
)
from kyverno_mp.cleanup.runner import Runner
from kyverno_mp.cleanup.ttl.run import TtlCleanup
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer, Project
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import CLEANUP_POLICIES_MAX, CLEANUP_SHOWN_MAX
from kyverno_mp.queues.reconcile import Controllers, Request
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.telemetry.families import DEFECTS

_WORKERS: Final = 3
_BACKOFF: Final = Backoff(least_s=1.0, most_s=60.0)
_HEALTH_S: Final = 5.0
_LEASE_S: Final = 0.5
_STOP_S: Final = 3.0
_FAILING: Final = 3


def run(dependencies: CleanupDependencies, stop: threading.Event) -> None:
    """Clean up until ``stop`` is set or the lease is lost."""
    cleanup = Cleanup(dependencies)
    cleanup.start()
    reported_s = float("-inf")
    try:
        while not stop.wait(_LEASE_S) and dependencies.holds_lease():
            if time.monotonic() - reported_s >= _HEALTH_S:
                cleanup.resync()
                dependencies.health(cleanup.problems())
                reported_s = time.monotonic()
    finally:
        cleanup.stop()


class StoredPolicies:
    """The policies of the cluster; an informer for each of the two kinds."""

    def __init__(self, client: Client) -> None:
        self._objects = Objects(client)
        self.informers = [
            Informer(client, WatchScope(resource=one), _projection(one))
            for one in (CLUSTER_POLICIES, POLICIES)
        ]

    def get(self, key: Key) -> StoredPolicy | None:
        """Return the policy, None when there is none."""
        return self._of(key).get(key)

    def newest(self, key: Key) -> StoredPolicy | None:
        """Return the policy; it is read live while the watch is interrupted.

        Raises: DependencyError.
        """
        informer = self._of(key)
        if not informer.failures:
            return informer.get(key)
        resource = informer.scope.resource
        raw = self._objects.find(resource, key)
        return (
            None if raw is None else stored_policy(resource, msgspec.json.encode(raw))
        )

    def _of(self, key: Key) -> Informer[StoredPolicy]:
        return self.informers[1 if key[0] else 0]


class Cleanup:
    """The controllers of one term as lease holder, and their threads."""

    def __init__(self, dependencies: CleanupDependencies) -> None:
        self._stopping = threading.Event()
        clock = dependencies.clock
        access = OwnAccess(dependencies.client, clock.monotonic_s)
        kinds = Kinds(dependencies.client, clock.monotonic_s)
        self.policies = StoredPolicies(dependencies.client)
        self.queue: WorkQueue[Request] = WorkQueue(
            depth_max=CLEANUP_POLICIES_MAX,
            backoff=_BACKOFF,
            clock_s=clock.monotonic_s,
        )
        runner = Runner(dependencies, kinds, access)
        self.controller = CleanupController(
            dependencies, self.policies, runner, self._stopping.is_set
        )
        self.controllers = Controllers(
            self.queue,
            {NAME: self.controller},
            on_defect=lambda name: dependencies.metrics.count(DEFECTS, (name,)),
        )
        for informer in self.policies.informers:
            informer.on_change(self._add)
        self._dropped = 0
        self.ttl = TtlCleanup(dependencies, kinds, access)
        self._threads = [
            threading.Thread(target=self.controllers.work, name="cleanup", daemon=True)
            for _ in range(_WORKERS)
        ]

    def start(self) -> None:
        """Start all threads."""
        for informer in self.policies.informers:
            informer.start()
        for thread in self._threads:
            thread.start()
        self.ttl.start()

    def stop(self) -> None:
        """Stop all threads; wait for calls in progress."""
        self._stopping.set()
        self.queue.shut_down(drain=False)
        self.ttl.stop()
        for informer in self.policies.informers:
            informer.stop()
        end_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def problems(self) -> list[str]:
        """Return the current problems."""
        failing = [
            f"watch of {one.scope.resource.plural}: {one.last_error}"
            for one in self.policies.informers
            if one.failures >= _FAILING
        ]
        more = sum(map(len, self.policies.informers)) - CLEANUP_POLICIES_MAX
        if more > 0:
            failing.append(
                f"{more} clean-up policies above the limit of {CLEANUP_POLICIES_MAX}"
                " do not run"
            )
        refused = self.controller.problems()[:CLEANUP_SHOWN_MAX]
        return [*failing, *refused, *self.ttl.problems()]

    def resync(self) -> None:
        """Add all policies again if the full queue dropped some."""
        if self.queue.dropped != self._dropped:
            self._dropped = self.queue.dropped
            for informer in self.policies.informers:
                for key in informer.snapshot():
                    self._add(key)

    def _add(self, key: Key) -> None:
        self.queue.add(Request(NAME, key_text(key)))


def _projection(resource: Resource) -> Project[StoredPolicy]:
    return lambda raw: stored_policy(resource, raw)
