"""Run the coordinator of the reports pool, and its evaluators.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM.
Next: process/roles/pool_start.py; reports/start.py does the work.
May touch: this process becomes the coordinator, or an evaluator.
Source: docs/pools.md 1, 4.
"""

import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kyverno_mp.egress.clients import open_receiver
from kyverno_mp.kube.shared_rights import SharedRights
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.limits import (
    REPORTS_BATCH_S_MAX,
    REPORTS_IMAGE_THREADS,
    REPORTS_IMAGES_BATCH_S_MAX,
    REPORTS_WAITING_MAX,
)
from kyverno_mp.pool.account import open_client_as
from kyverno_mp.pool.coordinator import Tools
from kyverno_mp.pool.evaluators import Evaluators, evaluate
from kyverno_mp.process.roles.pool_data import PoolData, refused
from kyverno_mp.process.roles.pool_start import run_pool
from kyverno_mp.process.startup.runtime_dir import IMAGES
from kyverno_mp.process.startup.start import Start
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.evaluator import BatchEvaluator
from kyverno_mp.reports.scan.images import ImageEvaluator
from kyverno_mp.reports.scan.requests import exclusions_of
from kyverno_mp.reports.scanned_kinds import RECORD_OF
from kyverno_mp.reports.start import run as write_reports
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.telemetry.families import IMAGE_CACHE, REGISTRY_CALLS
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.webhook.images import served_images
from kyverno_mp.webhook.live import named_secrets_of, secrets_of

_log = logging.getLogger(__name__)
NAME: Final = "reports"
ACCOUNT: Final = "kyverno-reports-controller"
"""Upstream's name of the ServiceAccount and of the Lease."""
EVALUATOR: Final = "reports-evaluator"
SegmentT = TypeVar("SegmentT", bound=PolicySegment)
_SOCKET: Final = "reports.sock"
_IMAGES_SOCKET: Final = "reports-images.sock"
_DATA: Final = ("configmaps", "globalcontext", "apicalls")
_DIGEST_BYTES: Final = 8
_POLL_S: Final = 0.1


def run(start: Start) -> None:
    """Scan and write reports while the lease is held, until SIGTERM."""

    def work(tools: Tools, data: PoolData, stop: threading.Event) -> None:
        """Do the pool's work for one term of the lease."""
        evaluators = Evaluators(
            start.runtime_dir / _SOCKET,
            queued_max=REPORTS_WAITING_MAX,
            batch_s_max=REPORTS_BATCH_S_MAX,
        )
        image_evaluators = Evaluators(
            start.runtime_dir / _IMAGES_SOCKET,
            queued_max=REPORTS_WAITING_MAX,
            batch_s_max=REPORTS_IMAGES_BATCH_S_MAX,
        )
        evaluators.start()
        image_evaluators.start()
        try:
            write_reports(
                ReportsDependencies(
                    client=tools.client,
                    evaluators=evaluators,
                    published=_Published(tools.place.snapshot, data),
                    metrics=tools.metrics,
                    events=tools.events,
                    successes=tools.successes,
                    settings=tools.place.settings,
                    holds_lease=tools.holds_lease,
                    health=tools.health,
                    served=data.served,
                    receive=open_receiver(tools.place.settings),
                    image_evaluators=image_evaluators,
                ),
                stop,
            )
        finally:
            evaluators.close()
            image_evaluators.close()

    run_pool(start, NAME, ACCOUNT, work)


def run_evaluator(start: Start) -> None:
    """Evaluate batches from the coordinator until SIGTERM."""
    settings, snapshot = start.settings, start.runtime_dir / SNAPSHOT
    client = open_client_as(settings, ACCOUNT)
    shared = SharedRights(start.runtime_dir / PAGES, ACCOUNT)
    client.rights = shared.rights
    cached, called = Tally(), Tally()
    images = served_images(
        settings,
        start.runtime_dir / IMAGES if settings.image_verify_cache else None,
        secrets_of(client, settings.namespace),
        cached.add,
        called.add,
        is_scan=True,
        read_key_secret=named_secrets_of(client),
    )
    data = PoolData(settings, snapshot, client, ACCOUNT, images)
    while not data.is_whole():
        time.sleep(_POLL_S)
    policies = _follow(snapshot, POLICIES, PolicySegment)
    clock = Clock(lambda: datetime.now(UTC), time.monotonic_ns)
    engine = Engine(data.cluster_data, clock, threading.Lock())
    evaluator = BatchEvaluator(
        policies.current,
        engine,
        types=_words(settings.reports_of),
        results=_words(settings.reports_results),
        is_excluded=exclusions_of(settings, data.is_excluded),
        cel_policies=_CelPolicies(snapshot).current,
    )

    def counts() -> Iterator[tuple[str, tuple[str, ...], int]]:
        for family, tally in ((IMAGE_CACHE, cached), (REGISTRY_CALLS, called)):
            for labels, number in tally.drain().items():
                yield family.name, labels, number

    def then_shared(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def handle(batch: bytes) -> bytes:
            found = answer(batch)
            shared.write()
            return found

        return handle

    is_linked = threading.Event()
    """Whether this process has a coordinator."""

    def note_link(is_open: bool) -> None:  # noqa: FBT001
        if is_open:
            is_linked.set()
        else:
            is_linked.clear()

    def verify() -> None:
        """Verify images of objects, one at a time."""
        verifier = ImageEvaluator(
            _follow(snapshot, POLICIES, PolicySegment).current,
            _CelPolicies(snapshot).current,
            engine,
            images.policies,
            results=_words(settings.reports_results),
            is_excluded=exclusions_of(settings, data.is_excluded),
            counts=counts,
        )
        socket = start.runtime_dir / _IMAGES_SOCKET
        try:
            handle = then_shared(verifier.answer)
            evaluate(socket, handle, threading.Event(), await_link=is_linked.wait)
        except Exception:  # noqa: BLE001 - another thread works on
            _log.exception("unexpected error, this evaluator ends")
            # If only this thread ended, the process would live on without verifying
            # images.
            os.kill(os.getpid(), signal.SIGTERM)

    for number in range(REPORTS_IMAGE_THREADS):
        threading.Thread(target=verify, name=f"images-{number}", daemon=True).start()
    handle = then_shared(evaluator.answer)
    path = start.runtime_dir / _SOCKET
    evaluate(path, handle, threading.Event(), on_link=note_link)


class _CelPolicies:
    """The published policies in CEL; use it from one thread only."""

    def __init__(self, snapshot: Path) -> None:
        self._snapshot = snapshot
        self._followers: dict[str, Follower[CelSegment[Any]]] = {}

    def current(self, name: str) -> CelSegment[Any] | None:
        follower = self._followers.get(name)
        if follower is None:
            attach = partial(CelSegment, record=RECORD_OF[name])
            follower = _follow(self._snapshot, name, attach)
            self._followers[name] = follower
        return follower.current()


class _Published:
    """The leader's published segments; use it from one thread only."""

    def __init__(self, snapshot: Path, data: PoolData) -> None:
        self._policies = _follow(snapshot, POLICIES, PolicySegment)
        self.cel_policies = _CelPolicies(snapshot).current
        self._data = data

    def policies(self) -> PolicySegment | None:
        return self._policies.current()

    def namespace_labels(self) -> tuple[int, Callable[[], Mapping[str, bytes]]]:
        segment = self._data.segment("namespaces")

        def read() -> Mapping[str, bytes]:
            if segment is None:
                return {}
            # Keys of whole objects end with a slash.
            names = (key for key in segment.list_keys() if key and key[-1] != "/")
            return {name: _digest(segment.get(name)) for name in names}

        return (0 if segment is None else segment.generation), read

    def data_generations(self) -> tuple[int, ...]:
        segments = (self._data.segment(name) for name in _DATA)
        return tuple(
            0 if segment is None else segment.generation for segment in segments
        )


def _digest(value: object) -> bytes:
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _follow(
    snapshot: Path, name: str, attach: Callable[[Segment], SegmentT]
) -> Follower[SegmentT]:
    return Follower(
        snapshot,
        ControlPage.open(snapshot),
        name,
        lambda segment, _previous: attach(segment),
        on_refused=refused,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(one.strip() for one in text.split(",") if one.strip())
