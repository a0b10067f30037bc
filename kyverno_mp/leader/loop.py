"""Watch the sources, compile changes, publish them, and report the result.

Room: leader. Takes: sources of policies and cluster data, folders or informers. Gives:
snapshot segments and status.json. Next: webhook workers attach; the health process
reads.
May touch: the clock, signals, the folders, the runtime folder.
Source: docs/architecture.md 2, 3.
"""

import gc
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kyverno_mp.leader.cluster_data import ClusterDataFolder
from kyverno_mp.leader.compile_cache import read_compile_cache, write_compile_cache
from kyverno_mp.leader.configuration import FixedConfiguration
from kyverno_mp.leader.data_segments import DataSegments
from kyverno_mp.leader.documents.outcomes import Helpers
from kyverno_mp.leader.documents.tenant_room import TenantRoom, linking_processes
from kyverno_mp.leader.folder import Changes, folder_at
from kyverno_mp.leader.policy_segments import PolicySegments
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import new_store
from kyverno_mp.leader.sources import Sources
from kyverno_mp.leader.status import NOTHING, PolicyStatus, Status, write_status
from kyverno_mp.limits import (
    COMPILE_FIRST_SLICE_S,
    COMPILE_SLICE_S,
    FIRST_PUBLICATION_S,
    PUBLISH_RETRY_S,
)
from kyverno_mp.queues.pace import Pace, Slice
from kyverno_mp.queues.signals import WAKE, await_signal, waker
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.telemetry.log import fields
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.values.kubernetes.policy_kinds import CEL_SEGMENTS

_log = logging.getLogger(__name__)
SNAPSHOT: Final = "snapshot"
"""Name of the folder of segments below the runtime folder."""
PAGES: Final = "pages"
"""Name of the folder of metric pages in the runtime folder."""
_OF_POLICIES: Final = frozenset((POLICIES, *CEL_SEGMENTS))
_OTHERS: Final = _OF_POLICIES | {SETTINGS}
"""The segments that are not cluster data."""
_ORDERS: Final = frozenset({signal.SIGTERM, signal.SIGHUP})
_SIGNALS: Final = _ORDERS | {WAKE}
_SETTLE_S: Final = 0.02
_IDLE_SHARE: Final = 5
"""The share of the poll interval that polling many files can take."""
_POLL_S_MAX: Final = 0.5
_LOGGED_MAX: Final = 50
"""The number of new problems that one publication logs."""
_CACHE_POLL_S: Final = 0.25
"""Changes of policies and cluster data end the pause; new data of entries does not."""
_QUIET_POLL_S: Final = 1.0
"""Without entries. PERF: four polls a second took 0.6 % of a core (perf/idle.py)."""


def _nothing() -> None:
    """Do nothing during long work."""


class Leader:
    """The only writer of snapshots in a pod."""

    def __init__(
        self,
        settings: Settings,
        runtime_dir: Path,
        publisher: Publisher,
        recorder: Recorder,
        sources: Sources | None = None,
        beat: Callable[[], None] = _nothing,
    ) -> None:
        """``sources`` is None for the folders; ``beat`` is called during long work."""
        self._runtime_dir = runtime_dir
        self._publisher = publisher
        self._recorder = recorder
        sources = sources or _folders_of(settings)
        self._policies, self._cluster_data = sources.policies, sources.cluster_data
        self._configuration = sources.configuration
        self._tell, self._lost_now = sources.tell, sources.lost
        self._lost = sources.lost()
        room = TenantRoom.measured(runtime_dir, linking_processes(settings))
        self._policy_store = new_store(
            settings,
            on_progress=beat,
            cache=read_compile_cache(runtime_dir / SNAPSHOT, room.kept),
            room=room,
        )
        self._outcomes_written: frozenset[bytes] = frozenset()
        self._began_s: float | None = None
        self._segments = PolicySegments(publisher)
        self._data = DataSegments(publisher)
        self._status, self._is_status_old = NOTHING, False
        self._folder_problems: tuple[str, ...] = ()
        self._unread: tuple[str, ...] = ()
        self._policy_set = PolicySet((), (), (), ())
        self._retry_s = 0.0
        self._slice = Slice(COMPILE_SLICE_S)

    def step(self, *, force: bool = False) -> bool:
        """Poll once; publish after changes, or if nothing was published yet."""
        with self._slice.round():
            return self._step(force=force)

    def _step(self, *, force: bool) -> bool:
        """Publish configuration and cluster data first.

        Policies that are written together with them can use them.
        """
        now_ns = time.time_ns()
        started_s = time.monotonic()
        if self._began_s is None:
            self._began_s = started_s
        failed = self.unpublished
        is_due = bool(failed) or self._is_status_old
        is_retry = is_due and started_s >= self._retry_s
        is_first = self._status.generation == 0
        first_s = COMPILE_FIRST_SLICE_S if is_first else 0.0
        self._slice.least_s = max(COMPILE_SLICE_S, first_s)
        first = is_first and (is_retry or not failed)
        corrupt = self._publisher.corrupt_segments()
        if corrupt:
            _log.error(
                "snapshot corrupt, publishing again", extra=fields(files=corrupt)
            )
        configured = self._configuration.poll()
        again = {*corrupt, *(failed if is_retry else ())}
        if configured or first or SETTINGS in again:
            self._data.publish(SETTINGS, self._configuration.values())
        cluster_data_changed = self._cluster_data.poll(now_ns, force=force)
        if cluster_data_changed or first or again - _OTHERS:
            self._data.publish_changed(self._cluster_data.segments(), again)
        changes = self._poll_policies(now_ns, force=force)
        problems = changes.problems
        generation = self._status.generation
        before, self._lost = self._lost, self._lost_now()
        damaged = before is not self._lost or changes.unread != self._unread
        damaged = damaged or not _OF_POLICIES.isdisjoint(again)
        self._unread = changes.unread
        if changes or first or damaged or self._policy_set.waiting:
            self._policy_set = self._policy_store.update(
                changes,
                self._slice.is_over,
                self._lost,
            )
            self._count(self._policy_set)
            if is_first and self.has_pending and not self._is_late(self._began_s):
                # An incomplete set could allow requests that the missing policies deny.
                return False
            # If a policy is rejected again, only the status changes.
            if self._segments.publish(self._policy_set, corrupt):
                generation = self._segments.generation
            if not self.has_pending:
                self._save_outcomes()
        elif problems == self._folder_problems and not (
            cluster_data_changed or configured or is_retry
        ):
            return False
        if self.unpublished or self._is_status_old:
            self._retry_s = time.monotonic() + PUBLISH_RETRY_S
        if not generation:
            # The last leader's snapshot and its status stay in force.
            return False
        self._folder_problems = problems
        self._report_status(generation)
        return True

    def use_helpers(self, helpers: Helpers) -> None:
        """Let other processes compile the first policies."""
        helpers.count_in(self._recorder)
        self._policy_store.use_helpers(helpers)

    @property
    def has_pending(self) -> bool:
        """Return whether policies must wait for compilation until the next step."""
        return self._policy_set.waiting > 0

    def _is_late(self, began_s: float) -> bool:
        """Return whether to publish an incomplete set, so that its policies apply."""
        # SAFETY: a pod that is ready allows what a missing policy forbids. Policies of
        # tenants may be late, so that theirs cannot delay everybody's.
        if self._policy_set.awaits_cluster_wide:
            return False
        if time.monotonic() - began_s < FIRST_PUBLICATION_S:
            return False
        _log.error(
            "snapshot published only in part",
            extra=fields(waiting=self._policy_set.waiting),
        )
        return True

    def _save_outcomes(self) -> None:
        """Save costly compilation results for the next leader."""
        outcomes = self._policy_store.costly_outcomes()
        if outcomes.keys() == self._outcomes_written:
            return
        if write_compile_cache(self._runtime_dir / SNAPSHOT, outcomes):
            self._outcomes_written = frozenset(outcomes)

    @property
    def generation(self) -> int:
        """The generation of the last published policies, 0 before the first."""
        return self._status.generation

    @property
    def unpublished(self) -> Mapping[str, str]:
        """The segments whose last version stays in force for lack of room, and why."""
        return {**self._data.unpublished, **self._segments.unpublished}

    def _poll_policies(self, now_ns: int, *, force: bool) -> Changes:
        if self._policies is None:
            return Changes({}, ())
        return self._policies.poll(
            now_ns, force=force, wait=lambda: time.sleep(_SETTLE_S)
        )

    def _report_status(self, generation: int) -> None:
        policy_set, before = self._policy_set, self._status
        same = generation == before.generation
        unpublished = [
            f"{name} is not published, its last version stays in force: {reason}"
            for name, reason in self.unpublished.items()
        ]
        unread = (
            *self._folder_problems,
            *policy_set.unread,
            *self._cluster_data.problems,
            *unpublished,
        )
        self._status = Status(
            generation=generation,
            published_ns=before.published_ns if same else time.monotonic_ns(),
            snapshot_bytes=self._size(),
            policies=self._segments.statuses(policy_set),
            problems=(
                *self._folder_problems,
                *self._configuration.problems,
                *policy_set.problems,
                *self._cluster_data.problems,
                *unpublished,
            ),
            unread=unread,
        )
        self._tell(self._status)
        self._is_status_old = not write_status(self._runtime_dir, self._status)
        self._log_problems(before.problems)

    def _log_problems(self, before: Sequence[str]) -> None:
        """Log new problems."""
        earlier = frozenset(before)
        new = [problem for problem in self._status.problems if problem not in earlier]
        for problem in new[:_LOGGED_MAX]:
            _log.warning("unusable input", extra=fields(problem=problem))
        if len(new) > _LOGGED_MAX:
            more = len(new) - _LOGGED_MAX
            _log.warning(
                "more unusable inputs, see /policies", extra=fields(count=more)
            )

    def _size(self) -> int:
        """Return the size of the segment of policies, 0 if it is lost. Unit: bytes."""
        path = self._runtime_dir / SNAPSHOT / segment_file(POLICIES)
        return path.stat().st_size if path.exists() else 0

    def _count(self, policy_set: PolicySet) -> None:
        for change, policy in policy_set.changes:
            self._recorder.changes.count((*_policy_labels(policy), change))
            if not policy.ready:
                _log.warning(
                    "policy rejected",
                    extra=fields(
                        policy=policy.name,
                        namespace=policy.namespace,
                        file=policy.file,
                        code=policy.code,
                        reason=policy.message,
                    ),
                )


def _policy_labels(policy: PolicyStatus) -> tuple[str, ...]:
    return (
        policy.mode,
        "namespaced" if policy.namespace else "cluster",
        str(policy.background).lower(),
        policy.namespace or "-",
        policy.name,
    )


def _folders_of(settings: Settings) -> Sources:
    return Sources(
        policies=folder_at(settings.policies_dir),
        cluster_data=ClusterDataFolder(folder_at(settings.resources_dir)),
        configuration=FixedConfiguration(settings),
    )


def run(
    settings: Settings,
    runtime_dir: Path,
    sources: Sources | None = None,
    gauges: Callable[[], Mapping[str, int]] = dict,
    count: Callable[[Recorder], None] = lambda _: None,
    helpers: Helpers | None = None,
) -> None:
    """Run the leader until SIGTERM; SIGHUP polls at once and reads all files.

    ``gauges`` returns more gauges for this process's page (telemetry.page.GAUGES);
    ``count`` adds the counts of other threads to the page.

    Nothing is published before the sources are complete, because an incomplete set
    could allow requests that the missing policies deny.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    page = Page.claim(runtime_dir / PAGES, "leader")
    recorder = Recorder(page, settings.metrics_series_max)
    publisher = Publisher(runtime_dir / SNAPSHOT)

    def beat() -> None:
        recorder.page.set_gauge("heartbeat_ns", time.monotonic_ns())
        if signal.SIGTERM in signal.sigpending():
            raise SystemExit  # a round can end anywhere, as by a kill

    leader = Leader(settings, runtime_dir, publisher, recorder, sources, beat)
    if helpers is not None:
        leader.use_helpers(helpers)
    pace = Pace()
    if sources is not None:
        sources.on_change(waker())
    force = False
    while True:
        started_ns = time.monotonic_ns()
        page = recorder.settled()
        page.set_gauge("heartbeat_ns", started_ns)
        for name, value in gauges().items():
            page.set_gauge(name, value)
        count(recorder)
        complete = sources is None or sources.are_complete()
        stepped = complete and leader.step(force=force)
        page.set_gauge("unpublished_segments", len(leader.unpublished))
        is_whole = not (leader.has_pending or leader.unpublished)
        if complete and sources is not None and is_whole:
            sources.published(leader.generation)
        if stepped and not leader.has_pending:
            # PERF: the collector need not visit the many small objects of ten thousand
            # policies at every publication. Collect first: frozen garbage would stay.
            gc.collect()
            gc.freeze()
        ended_ns = time.monotonic_ns()
        if stepped:
            pace.worked(started_ns / 1e9, ended_ns / 1e9)
        else:
            pace.idle()
        taken_s = (ended_ns - started_ns) / 1e9
        if leader.has_pending:
            number = await_signal(_ORDERS, 0)
        else:
            poll_s = _poll_s(settings, sources, is_settled=complete and is_whole)
            pause_s = max(poll_s, min(_POLL_S_MAX, taken_s * _IDLE_SHARE))
            number = _pause(pause_s, pace)
        if number == signal.SIGTERM:
            return
        force = number == signal.SIGHUP


def _poll_s(settings: Settings, sources: Sources | None, *, is_settled: bool) -> float:
    """Return the pause between two polls that no change ends."""
    if sources is None:
        return settings.policies_poll_ms / 1000
    return _CACHE_POLL_S if sources.is_polled() or not is_settled else _QUIET_POLL_S


def _pause(pause_s: float, pace: Pace) -> int:
    """Wait for the time, a signal or a change; return a control signal, else 0.

    After the first change of a burst, wait for the later ones.
    """
    number = await_signal(_SIGNALS, pause_s)
    if number != WAKE:
        return number
    wait_s = pace.wait_s(time.monotonic())
    # The next poll finds all changes up to then.
    return await_signal(_ORDERS, wait_s) if wait_s > 0 else 0
