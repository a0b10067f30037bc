"""Attach one worker of an authorizer to the snapshot and its metric page.

Room: webhook. Takes: Settings, the paths in the runtime folder. Gives: Attached: the
policies in force, their ports, the counts. Next: start.py, grpc_server.py.
May touch: maps files of the runtime folder; the environment, through settings.
Source: docs/architecture.md 3 (attach, swapped between two requests).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kyverno_mp.egress.clients import open_client, open_services
from kyverno_mp.egress.key_sets import KeySets
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import SLOW_REVIEWS_WAITING_MAX
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.program.authorization import Authorizer
from kyverno_mp.program.payloads import Context, Judged, PayloadPolicies
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.snapshot.cel_segments import AuthorizationSegment
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.telemetry.families import (
    AUTHZ_DECISIONS,
    AUTHZ_POLICIES,
    JSON_PAYLOADS,
    QUERIES,
)
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import OF_AUTHORIZERS
from kyverno_mp.webhook.authz.deciding import (
    Access,
    Deciding,
    Options,
    not_loaded,
    runtime_of,
)

_LOG = logging.getLogger(__name__)
ROLE = "authorizer"


class Places(NamedTuple):
    """The folders that a worker shares with other processes."""

    snapshot: Path
    pages: Path


class Attached:
    """The policies that one worker follows, and its row in the control page."""

    def __init__(
        self, settings: Settings, places: Places, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._folder = places.snapshot
        self._poll_s = settings.snapshot_poll_ms / 1000
        page = Page.claim(places.pages, ROLE)
        self.recorder = Recorder(page, settings.metrics_series_max)
        self.recorder.configure(MetricsConfiguration())
        self._control = ControlPage.open(places.snapshot)
        pid = os.getpid()
        self.slot = self._control.claim(pid, start_ticks(pid))
        self._attacher = ThreadPoolExecutor(1, thread_name_prefix="attach")
        self._follower: Follower[_Linked] = Follower(
            places.snapshot,
            self._control,
            OF_AUTHORIZERS.segment,
            partial(_linked, settings.evaluation_mode, settings.json_payloads),
            on_refused=self._refused,
            defer=self._defer,
        )
        self._queries = Tally()
        self._decisions = self.recorder.series(AUTHZ_DECISIONS)
        self._by_policy = self.recorder.series(AUTHZ_POLICIES)
        self._mode = settings.authz_mode
        access = self._access(settings)
        self._ports = access.ports
        self.deciding = Deciding(
            Options(
                mode=settings.evaluation_mode,
                denies_by_default=settings.authz_default_decision == "deny",
                timeout_s=settings.webhook_timeout_s,
                threads=settings.io_threads,
                waiting_max=SLOW_REVIEWS_WAITING_MAX,
                logs=settings.log_decisions,
            ),
            self._authorizer,
            access,
            self._observe,
        )

    def _access(self, settings: Settings) -> Access:
        """Open the ports to services and, in a cluster, to the API server."""
        services = open_services(settings)
        ports = CelPorts(services=services)
        if not settings.standalone:
            client = open_client(settings)
            client.on_query = self._queries.add
            kinds = LiveKinds(lambda: None, client)
            resources = LiveResources(lambda: client, kinds.plural_of)
            ports = CelPorts(services=services, resources=resources)
        return Access(ports, KeySets(services))

    def _authorizer(self) -> Authorizer | None:
        linked = self._follower.current()
        return None if linked is None else linked.authorizer

    def judge(
        self, payload: dict[str, Json], deadline_ns: int, pace: Pace
    ) -> list[Judged]:
        """Judge a JSON payload. Raises: DeadlinePassed, QueueFull."""
        linked = self._follower.current()
        if linked is None:
            raise not_loaded()
        context = Context(runtime_of(deadline_ns, pace), self._ports)
        return linked.payloads.judge(payload, context)

    def on_payload(self, outcome: str, seconds: float) -> None:
        """Count a JSON payload; in the event loop."""
        self.recorder.series(JSON_PAYLOADS).observe((outcome,), seconds)

    def listen(self) -> None:
        """Check for new generations when the bell rings, and periodically."""
        try:
            bell = Bell.of_worker(self._folder, os.getpid())
        except (OSError, SnapshotUnusable) as error:
            _LOG.warning("no notifications from the leader, polling instead: %s", error)
        else:
            self._loop.add_reader(bell.fileno(), self._on_bell, bell)
        self._poll()

    def tick(self, connections: int = 0) -> None:
        """Write this worker's state to its page, once a second."""
        page = self.recorder.settled()
        page.set_gauge("heartbeat_ns", time.monotonic_ns())
        page.set_gauge("generation", self._follower.generation)
        page.set_gauge("connections", connections)
        for labels, count in self._queries.drain().items():
            self.recorder.series(QUERIES).count(labels, float(count))
        if self._follower.is_behind and not self._follower.is_deferred:
            self._follower.refresh()
        elif self._follower.is_behind:
            self._defer(self._follower.refresh)

    def count_error(self, code: str) -> None:
        """Count an error; in any thread."""
        self._in_loop(lambda: self.recorder.errors.count((code,)))

    def _observe(self, decision: str, source: str, policy: str, seconds: float) -> None:
        labels = (self._mode, decision, source)
        self._decisions.observe(labels, seconds)
        if policy:
            labels = (self._mode, policy, decision)
            self._by_policy.count(labels)

    def _on_bell(self, bell: Bell) -> None:
        # Clear before the check, so that a ring during the check is noticed.
        bell.clear()
        self._follow()

    def _poll(self) -> None:
        self._follow()
        self._loop.call_later(self._poll_s, self._poll)

    def _follow(self) -> None:
        """Serve the newest policies, and report which these are.

        The leader publishes them before the segment whose generation stands for all.
        """
        newest = self._control.generation(POLICIES)
        self._follower.current()
        if newest and not self._follower.is_behind:
            self.slot.serve(POLICIES, newest)
        self.slot.serve(OF_AUTHORIZERS.segment, self._follower.generation)

    def _defer(self, attach: Callable[[], None]) -> None:
        self._attacher.submit(attach).add_done_callback(self._attached_aside)

    def _attached_aside(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self.count_error("webhook.defect")
            _LOG.error("internal error while attaching a snapshot", exc_info=error)
        self._in_loop(self._follow)

    def _in_loop(self, call: Callable[[], None]) -> None:
        # The loop can already be closed when a late thread ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _refused(self, error: SnapshotUnusable) -> None:
        self.count_error(error.code)
        _LOG.error("snapshot rejected: %s", error.message)


class _Linked(NamedTuple):
    """The policies of one generation."""

    authorizer: Authorizer
    payloads: PayloadPolicies


def _linked(
    mode: str,
    judges_payloads: bool,  # noqa: FBT001 - a setting, bound before the others
    segment: Segment,
    _previous: _Linked | None,
) -> _Linked:
    policies = AuthorizationSegment(segment)
    payloads = policies.of_payloads() if judges_payloads else ()
    return _Linked(Authorizer(policies.records(), mode), PayloadPolicies(payloads))
