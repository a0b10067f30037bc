"""Count denials against the budgets of gradually enforced policies, in all replicas.

Room: leader. Takes: the workers' journals of denials, the stored states and counts.
Gives: DenialCounter: the exceeded budgets, to the workers of this pod at once and to
controllers/rollouts.py; the counts of this replica, stored for the others.
Next: leader/rollouts.py publishes. May touch: the journals, one key of a ConfigMap
through kube/apply.py, a thread, the clock, the log.
Source: docs/gradual-enforcement.md.

A record is removed from its journal after its denial is stored, so a kill at any moment
loses none, and whoever follows counts it once. Each replica writes one key, in a merge
patch without a version: it conflicts with no other writer. Without an API server, the
replica counts its own denials, and its workers still fall back.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.controllers.rollout_states import CONFIG_MAPS, Stored, counts_key
from kyverno_mp.errors import DependencyError, StateError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key
from kyverno_mp.leader.rollouts import PublishedRollouts
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.journal import JournalReader, Record
from kyverno_mp.queues.record_pause import RecordPause
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.snapshot.denials import (
    Counted,
    DenialCounts,
    Excess,
    decode_denial,
    excess_of,
    number_in,
    together,
)
from kyverno_mp.telemetry.families import ROLLOUT_BUDGET_USED
from kyverno_mp.telemetry.record import Recorder

_log = logging.getLogger(__name__)
_RECORDS_MAX: Final = 256
"""Records of one journal that wait for one write."""
_POLL_S: Final = 0.5
"""While a step is counted: the budget's periods end by the clock."""
_IDLE_S: Final = 2.0
"""A worker and its arbiter may die at once, after a record and before its ring."""
_TOGETHER_S: Final = 0.02
"""Denials that arrive together are counted at once: each of them rings."""
_WRITE_S: Final = 0.2
"""The time between two writes: a fall-back has a second to reach all replicas."""
_SEEN_S: Final = 5.0
"""The time in which a write comes back by the watch; later, it was undone."""
_RETRY_S: Final = 1.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the counter reads, and whom it tells."""

    stored: Callable[[], Stored | None]
    """Returns the content of the ConfigMap, None while it is unknown."""
    rollouts: PublishedRollouts
    on_excess: Callable[[], None]
    """Called when a budget is exceeded, so that the lease holder stores it."""
    bell: Callable[[], Bell | None] = lambda: None
    """Creates what is rung after each record, and when the ConfigMap changes."""


class DenialCounter:
    """The thread that counts denials."""

    def __init__(
        self,
        reader: JournalReader,
        objects: Objects,
        stored_at: tuple[Key, str],
        inputs: Inputs,
        clock: Clock,
    ) -> None:
        """``stored_at``: the key of the ConfigMap, and the name of this replica."""
        self._reader = reader
        self._objects = objects
        self._key, self._replica = stored_at
        self._inputs = inputs
        self._clock = clock
        self._counts: DenialCounts | None = None
        self._excesses: Mapping[str, Excess] = {}
        self._parts: Mapping[str, list[Counted]] = {}
        self._used: set[str] = set()
        self._written: Mapping[str, Counted] = {}
        self._next_write_s = self._seen_s = float("-inf")
        self._stopping = threading.Event()
        self._pause = RecordPause(inputs.bell)
        self._thread = threading.Thread(target=self._run, name="denials", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is counted, and stop."""
        self._stopping.set()
        self._pause.stop()
        self._thread.join(timeout=_STOP_S)

    def excesses(self) -> Mapping[str, Excess]:
        """Return the exceeded budgets by policy; from any thread."""
        return self._excesses

    def count(self, recorder: Recorder) -> None:
        """Write the gauges; called in the page's writer thread."""
        now_s, parts = self._now_s(), self._parts
        series = recorder.series(ROLLOUT_BUDGET_USED)
        for name in self._used - parts.keys():
            series.hold((name.replace("_", "/"),), 0.0)
        for name, counted in parts.items():
            budget = counted[0].budget
            used = number_in(counted, budget, now_s) / max(1, budget.denials)
            series.hold((name.replace("_", "/"),), round(used, 3))
        self._used = set(parts)

    def step(self) -> bool:
        """Count and store what is new; return False if something waits to be stored."""
        stored = self._inputs.stored()
        if stored is None or not self._inputs.rollouts.is_set:
            return True
        states = self._inputs.rollouts.states()
        runs = {name: state.run for name, state in states.items() if state.run}
        if self._counts is None:
            self._counts = DenialCounts(stored.counted.get(self._replica))
        self._counts.keep(runs)
        self._counts.forget_old(self._now_s())
        records = self._take(self._counts, runs)
        self._compare(self._counts, stored, runs)
        if not self._store(self._counts.counted, stored):
            return False
        for record in records:
            record.done()
        return True

    def _take(self, counts: DenialCounts, runs: Mapping[str, str]) -> list[Record]:
        """Count the waiting records; those of other steps count no more."""
        records: list[Record] = []
        for waiting in self._reader.ahead(_RECORDS_MAX):
            for record in waiting:
                records.append(record)
                try:
                    denial = decode_denial(record.content)
                except StateError as error:
                    _log.error("journal of denials: %s", error.message)
                    continue
                if runs.get(denial.name) == denial.run:
                    counts.add(denial)
        return records

    def _compare(
        self, counts: DenialCounts, stored: Stored, runs: Mapping[str, str]
    ) -> None:
        """Fall back if this replica and the others together exceed a budget."""
        others = {
            name: counted
            for name, counted in stored.counted.items()
            if name != self._replica
        }
        self._parts = together([counts.counted, *others.values()], runs)
        now_s = self._now_s()
        excesses = {
            name: excess
            for name, excess in self._excesses.items()
            if runs.get(name) == excess.run
        }
        is_new = False
        for name, parts in self._parts.items():
            excess = None if name in excesses else excess_of(parts, now_s)
            if excess is not None:
                excesses[name], is_new = excess, True
        for name in excesses.keys() & counts.counted.keys():
            counts.exceed(name)
        self._excesses = excesses
        self._inputs.rollouts.fall_back(excesses)
        if is_new:
            self._inputs.on_excess()

    def _store(self, counted: Mapping[str, Counted], stored: Stored) -> bool:
        """Store the counts if they changed; return False if they must wait."""
        now_s = self._clock.monotonic_s()
        is_seen = now_s >= self._seen_s
        before = stored.counted.get(self._replica, {}) if is_seen else self._written
        if counted == before:
            return True
        if now_s < self._next_write_s and not self._stopping.is_set():
            return False
        value = msgspec.json.encode(counted).decode() if counted else None
        patch = {"data": {counts_key(self._replica): value}}
        try:
            self._objects.merge(CONFIG_MAPS, self._key, patch)
        except DependencyError as error:
            _log.warning("cannot store counted denials, will retry: %s", error.message)
            self._next_write_s = now_s + _RETRY_S
            return False
        self._written = dict(counted)
        self._next_write_s, self._seen_s = now_s + _WRITE_S, now_s + _SEEN_S
        return True

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())

    def _run(self) -> None:
        pause_s = _IDLE_S
        while not self._pause.is_last(ring_s_max=pause_s):
            # The bell rings for each denial, and for a change of the stored states.
            if self._stopping.wait(_TOGETHER_S):
                break
            is_stored = self.step()
            pause_s = _POLL_S if self._parts else _IDLE_S
            if not is_stored:
                left_s = self._next_write_s - self._clock.monotonic_s()
                pause_s = min(_POLL_S, max(0.0, left_s))
        self.step()
