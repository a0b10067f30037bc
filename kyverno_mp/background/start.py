"""Run the background pool while this replica holds the lease.

Room: background. Takes: BackgroundDependencies, an event that stops it. Gives: ``run``.
Next: the process that holds the lease calls it. May touch: threads, the clock; the API
server through the parts of this room.
Source: docs/behaviour/controllers 5; docs/pools.md 1, 3.

The threads, and what each writes:
    caller       health, every few seconds
    informer-*   its cache; adds keys of triggers and of policies
    background   triggers and policies: generated objects, targets, UpdateRequests
                 (as many as KYVERNO_MP_BACKGROUND_WORKERS, and one for policies)
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kyverno_mp.background import requests
from kyverno_mp.background.caches import Caches
from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate import policy_events
from kyverno_mp.background.generate.changes import Changes
from kyverno_mp.background.generate.generator import Generator
from kyverno_mp.background.generate.lost import LostTriggers
from kyverno_mp.background.generate.policy_events import PolicyEvents
from kyverno_mp.background.generating import events as generating_events
from kyverno_mp.background.generating.assemble import GeneratingParts
from kyverno_mp.background.hand_over import handed_over, is_for_others
from kyverno_mp.background.mutate.cel_policies import LiveMutators
from kyverno_mp.background.mutate.cel_targets import Targets
from kyverno_mp.background.mutate.mutating import MutatingRunner
from kyverno_mp.background.mutate.mutator import Mutator
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.policies import (
    GenerateRule,
    ReadyPolicy,
    policy_key,
    policy_name,
)
from kyverno_mp.background.register import RuleRegister
from kyverno_mp.background.requests import Requests
from kyverno_mp.background.runner import Runner, kinds_of
from kyverno_mp.background.stored import policies_with_rules
from kyverno_mp.background.update_request import (
    COMPLETED,
    Place,
    StoredRequest,
    Task,
    read_request,
)
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import BACKGROUND_TRIGGERS_MAX
from kyverno_mp.pool.term import join, run_term, watch_problems
from kyverno_mp.queues.reconcile import Controllers, Reconciler, Request
from kyverno_mp.queues.update_requests import UPDATE_REQUESTS
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.telemetry.families import BACKGROUND_WAITING, DEFECTS
from kyverno_mp.telemetry.families import UPDATE_REQUESTS as UPDATE_REQUEST_COUNT

_log = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(least_s=0.5, most_s=60.0)
_STORED_S: Final = 1.0
"""At its end, the pool gives the API server this time to store the objects of the last
reviews, and the leader to write the last requests."""


def run(dependencies: BackgroundDependencies, stop: threading.Event) -> None:
    """Generate and mutate until ``stop`` is set or the lease is lost.

    With ``hands_over``, only look for lost triggers, and leave them to the holder.
    """
    background = Background(dependencies)

    def finish() -> None:
        # A term may end before its first list.
        background.informer.wait_synced(_STORED_S)
        if background.lost():
            time.sleep(_STORED_S)
            background.finish()

    tick = None if dependencies.hands_over else background.adopt
    run_term(background, dependencies, stop, tick, finish)


class Background:
    """The parts and threads of one term as lease holder."""

    def __init__(self, dependencies: BackgroundDependencies) -> None:
        clock, client = dependencies.clock, dependencies.client
        self._dependencies = dependencies
        self._kinds = Kinds(client, clock.monotonic_s)
        self.policies = policies_with_rules(client, dependencies.settings.exceptions_in)
        self._triggers = Triggers(client, self._kinds)
        self._downstream = Downstream(
            client, self._kinds, dependencies.holds_lease, clock.monotonic_s
        )
        self.register = RuleRegister(
            client, dependencies.settings.namespace, self._downstream.guard
        )
        self._existing = Existing(dependencies, self._kinds)
        caches = Caches(self.policies.reread, self._triggers)
        self.generator = Generator(
            *(dependencies, self._triggers, self._downstream, self.register, caches),
            self._add_policy,
            self._claim,
        )
        self.generating = GeneratingParts(
            dependencies,
            self._kinds,
            self._triggers,
            self._downstream,
            submit=self._submit,
            add_policy=self._add_generating,
        )
        self.requests = self._requests(caches)
        self.events = PolicyEvents(
            dependencies,
            self.policies,
            self._existing,
            self._downstream,
            self.register,
            self.requests.submit,
        )
        scope = WatchScope(
            resource=UPDATE_REQUESTS, namespace=dependencies.settings.namespace
        )
        kept = is_for_others if dependencies.hands_over else _kept
        self.informer: Informer[StoredRequest] = Informer(client, scope, kept)
        self.requests.follow(self.informer)
        for informer in self.policies.stored.informers:
            informer.on_change(self._add_policy)
        self.queue, self.policy_queue = self._queue(), self._queue()
        self.controllers = self._controllers(self.queue, {requests.NAME: self.requests})
        self.policy_controllers = self._controllers(
            self.policy_queue,
            {
                policy_events.NAME: self.events,
                generating_events.NAME: self.generating.events,
            },
        )
        self._is_adopted = False
        self._threads = self._new_threads()

    def _requests(self, caches: Caches) -> Requests:
        """Return the reconciler of UpdateRequests, which runs rules of every kind."""
        dependencies, guard = self._dependencies, self._downstream.guard
        mutator = Mutator(dependencies, self._kinds, self._triggers, caches, guard)
        mutating = MutatingRunner(
            dependencies,
            LiveMutators(dependencies.client, dependencies.settings.exceptions_in),
            self._triggers,
            Targets(dependencies, self._kinds),
            guard,
        )
        lost = LostTriggers(
            self.policies, self._existing, self._downstream, dependencies
        )
        kinds = kinds_of(
            self.policies,
            self.generator,
            mutator,
            mutating,
            lost,
            self.generating.generating,
            lost_generating=self.generating.events.lost,
        )
        if dependencies.hands_over:
            kinds = handed_over(kinds, dependencies, guard)
        runner = Runner(
            kinds,
            Changes(self._triggers, self._downstream),
            self._count_defect,
            dependencies.author_reason,
        )
        return Requests(dependencies, runner, guard, self._add_trigger)

    def _new_threads(self) -> list[threading.Thread]:
        """Return the threads that reconcile; policies have one of their own."""
        workers = self._dependencies.settings.background_workers
        return [
            threading.Thread(target=work, name="background", daemon=True)
            for work in (
                self.policy_controllers.work,
                *[self.controllers.work] * workers,
            )
        ]

    def _queue(self) -> WorkQueue[Request]:
        return WorkQueue(
            depth_max=BACKGROUND_TRIGGERS_MAX,
            backoff=_BACKOFF,
            clock_s=self._dependencies.clock.monotonic_s,
        )

    def _count_defect(self, controller: str = requests.NAME) -> None:
        self._dependencies.metrics.count(DEFECTS, (controller,))

    def _controllers(
        self, queue: WorkQueue[Request], reconcilers: Mapping[str, Reconciler]
    ) -> Controllers:
        return Controllers(
            queue,
            reconcilers,
            on_defect=self._count_defect,
        )

    def start(self) -> None:
        """Start all threads."""
        for informer in self._informers():
            informer.start()
        for thread in self._threads:
            thread.start()

    def adopt(self) -> None:
        """Reconcile the recorded policies once, because some may have been deleted.

        This waits until all policies are known: an unlisted policy may still exist.
        """
        self.generating.adopt()
        if self._is_adopted or not self.policies.synced:
            return
        try:
            names = self.register.policies()
        except DependencyError as error:
            _log.warning(error.message)
            return
        self._is_adopted = True
        for name in names:
            self._add_policy(policy_key(name))

    def lost(self) -> list[StoredRequest]:
        """Return the requests for triggers that were lost."""
        return [
            request
            for request in self.informer.snapshot().values()
            if request.lost_since_ns and request.waits
        ]

    def finish(self) -> None:
        """Look for lost triggers now, because the pool ends."""
        self.requests.looks.finish(self.lost())

    def stop(self) -> None:
        """Stop all threads; wait for calls in progress."""
        self.queue.shut_down(drain=False)
        self.policy_queue.shut_down(drain=False)
        self.generating.watches.stop()
        for informer in self._informers():
            informer.stop()
        join(self._threads)

    def problems(self) -> list[str]:
        """Return the current problems."""
        failing = watch_problems((*self.policies.informers, self.informer))
        return [*failing, *self.generating.problems()]

    def _informers(self) -> list[Informer[Any]]:
        return [
            *self.policies.informers,
            *self.generating.policies.informers,
            self.informer,
        ]

    def report(self) -> None:
        """Set the gauges, and report the kinds that are not watched."""
        if self._dependencies.hands_over:
            return
        metrics, waiting = self._dependencies.metrics, float(self.requests.waiting)
        namespace = self._dependencies.settings.namespace
        metrics.hold(BACKGROUND_WAITING, (), waiting)
        metrics.hold(UPDATE_REQUEST_COUNT, (namespace,), waiting)
        self.generating.report_unwatched()

    def _claim(
        self, policy: ReadyPolicy, rule: GenerateRule, places: Iterable[Place]
    ) -> None:
        self.events.claim(policy, rule, places)

    def _submit(self, task: Task) -> bool:
        return self.requests.submit(task)

    def _add_trigger(self, key: str) -> bool:
        return self.queue.add(Request(requests.NAME, key))

    def _add_generating(self, key: Key) -> None:
        if not self._dependencies.hands_over:
            self.policy_queue.add(Request(generating_events.NAME, policy_name(key)))

    def _add_policy(self, key: Key) -> None:
        if not self._dependencies.hands_over:
            self.policy_queue.add(Request(policy_events.NAME, policy_name(key)))


def _kept(raw: msgspec.Raw) -> StoredRequest | None:
    """Return the request if this pool processes or removes it, otherwise None."""
    request = read_request(raw)
    if not request.is_ours or request.metadata.deletion_timestamp:
        return None
    return request if request.waits or request.status.state == COMPLETED else None
