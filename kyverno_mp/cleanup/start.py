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
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from kyverno_mp.cleanup.controller import CleanupController, Family, Places, key_text
from kyverno_mp.cleanup.deleting import compiled_in_cel
from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.exceptions import Exceptions
from kyverno_mp.cleanup.kinds import Kinds
from kyverno_mp.cleanup.policy import (
    CEL_CLEANERS,
    CLEANERS,
    CompiledPolicy,
    StoredPolicy,
    compiled_policy,
    is_deleting,
    stored_policy,
)
from kyverno_mp.cleanup.runner import Runner
from kyverno_mp.cleanup.ttl.run import TtlCleanup
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import CLEANUP_POLICIES_MAX, CLEANUP_SHOWN_MAX
from kyverno_mp.pool.stored import StoredPolicies
from kyverno_mp.pool.term import join, run_term, watch_problems
from kyverno_mp.queues.reconcile import Controllers, Request
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import DEFECTS

CLEANUP: Final = "cleanup-controller"
DELETING: Final = "deleting-controller"
"""Names of the controllers, the same as upstream's."""
_WORKERS: Final = 3
_BACKOFF: Final = Backoff(least_s=1.0, most_s=60.0)


def run(dependencies: CleanupDependencies, stop: threading.Event) -> None:
    """Clean up until ``stop`` is set or the lease is lost."""
    run_term(Cleanup(dependencies), dependencies, stop)


class Cleanup:
    """The controllers of one term as lease holder, and their threads."""

    def __init__(self, dependencies: CleanupDependencies) -> None:
        self._stopping = threading.Event()
        clock = dependencies.clock
        access = OwnAccess(dependencies.client, clock.monotonic_s)
        kinds = Kinds(dependencies.client, clock.monotonic_s, dependencies.served)
        client = dependencies.client
        self.policies = StoredPolicies(client, CLEANERS, stored_policy)
        self.deleting = StoredPolicies(client, CEL_CLEANERS, stored_policy)
        self.exceptions = Exceptions(client, dependencies.settings)
        self.queue: WorkQueue[Request] = WorkQueue(
            depth_max=CLEANUP_POLICIES_MAX,
            backoff=_BACKOFF,
            clock_s=clock.monotonic_s,
        )
        runner, places = Runner(dependencies, kinds, access), Places()
        self._families = {
            CLEANUP: self.policies.informers,
            DELETING: self.deleting.informers,
        }
        self._controllers = {
            family.name: CleanupController(
                dependencies, family, runner, places, self._stopping.is_set
            )
            for family in self._made_families(dependencies.settings)
        }
        self.controllers = Controllers(
            self.queue,
            self._controllers,
            on_defect=lambda name: dependencies.metrics.count(DEFECTS, (name,)),
        )
        for name, informers in self._families.items():
            for informer in informers:
                informer.on_change(partial(self._add, name))
        self.exceptions.on_change(self._add_deleting)
        self._dropped = 0
        self.ttl = TtlCleanup(dependencies, kinds, access)
        self._threads = [
            threading.Thread(target=self.controllers.work, name="cleanup", daemon=True)
            for _ in range(_WORKERS)
        ]

    @property
    def informers(self) -> list[Informer[StoredPolicy]]:
        """The informers of the policies of all kinds."""
        return [*self.policies.informers, *self.deleting.informers]

    def _all_informers(self) -> list[Informer[Any]]:
        return [*self.exceptions.informers, *self.informers]

    def start(self) -> None:
        """Start all threads."""
        for informer in self._all_informers():
            informer.start()
        for thread in self._threads:
            thread.start()
        self.ttl.start()

    def stop(self) -> None:
        """Stop all threads; wait for calls in progress."""
        self._stopping.set()
        self.queue.shut_down(drain=False)
        self.ttl.stop()
        for informer in self._all_informers():
            informer.stop()
        join(self._threads)
        self.leave()

    def leave(self) -> None:
        """Clear the gauges of the policies, which the next lease holder sets."""
        for controller in self._controllers.values():
            controller.stop()

    def problems(self) -> list[str]:
        """Return the current problems."""
        failing = watch_problems(
            informer for informer in self._all_informers() if not _may_lack(informer)
        )
        more = sum(map(len, self.informers)) - CLEANUP_POLICIES_MAX
        if more > 0:
            failing.append(
                f"{more} clean-up policies above the limit of {CLEANUP_POLICIES_MAX}"
                " do not run"
            )
        refused = [
            problem
            for controller in self._controllers.values()
            for problem in controller.problems()
        ]
        return [*failing, *refused[:CLEANUP_SHOWN_MAX], *self.ttl.problems()]

    def report(self) -> None:
        """Add all policies again if some were dropped because the queue was full."""
        if self.queue.dropped != self._dropped:
            self._dropped = self.queue.dropped
            for name in self._families:
                self._add_all(name)

    def _made_families(self, settings: Settings) -> Iterator[Family]:
        yield Family(
            CLEANUP, self.policies, partial(compiled_policy, settings=settings)
        )

        def compile_deleting(stored: StoredPolicy) -> CompiledPolicy:
            # The digest is read first; a change in between only causes one more
            # compilation.
            digest = self.exceptions.digest(stored)
            naming = self.exceptions.naming(stored)
            return compiled_in_cel(stored, naming, digest, settings)

        yield Family(DELETING, self.deleting, compile_deleting, self.exceptions.digest)

    def _add_deleting(self) -> None:
        """Add all DeletingPolicies: a changed exception may affect their validity."""
        self._add_all(DELETING)

    def _add_all(self, name: str) -> None:
        for informer in self._families[name]:
            for key in informer.snapshot():
                self._add(name, key)

    def _add(self, name: str, key: Key) -> None:
        self.queue.add(Request(name, key_text(key)))


def _may_lack(informer: Informer[Any]) -> bool:
    """Return whether the kind may be missing because the installed CRDs are too old."""
    return informer.is_absent and is_deleting(informer.scope.resource)
