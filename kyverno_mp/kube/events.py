"""Write Events about policies and resources: few, bounded, repeated ones counted.

Room: kube. Takes: Notice. Gives: events.k8s.io/v1 Events. Next: webhook's audit sink,
controllers. May touch: the API server through kube/apply.py, the clock, one thread.
Source: spec/controllers.md 9.1 (reasons, names, notes, --omitEvents, queue of 1000);
Kubernetes Event series.

A notice like one of the last minutes becomes a count in its series, not an Event of its
own; per object there is a budget; what finds no place is dropped and counted, never
waited for.
"""

import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import DependencyError, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import EVENT_NOTE_CHARACTERS_MAX, EVENTS_QUEUED_MAX
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
EVENTS: Final = Resource(group="events.k8s.io", version="v1", plural="events")
_NORMAL: Final = frozenset({"PolicyApplied", "PolicySkipped"})
_NOT_OF_A_NAME: Final = re.compile(r"[^a-z0-9.-]")
_SERIES_NS: Final = 6 * 60 * 10**9
"""K8S: a series is at an end after six minutes without a new occurrence."""
_SERIES_MAX: Final = 4096
_BURST: Final = 25.0
_REFILL_PER_S: Final = 1 / 10
"""Budget of new Events per object: 25 at once, then six a minute."""
_FLUSH_S: Final = 1.0
_COUNT_AFTER_NS: Final = 30 * 10**9
"""A series' count is written at most twice a minute."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an Event speaks of."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def as_json(self) -> Json:
        """Return an ObjectReference."""
        pairs = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
        }
        return {name: value for name, value in pairs.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One occurrence. ``controller`` e.g. ``kyverno-admission``."""

    regarding: Reference
    related: Reference | None = None
    reason: str
    action: str
    note: str
    controller: str


@dataclass(slots=True)
class _Series:
    """An Event that was written, and how often it happened since."""

    name: str
    namespace: str
    seen_ns: int
    count: int = 1
    written: int = 1
    written_ns: int = 0


class Events:
    """Takes notices from any thread; ``flush`` or the thread of ``start`` writes."""

    def __init__(
        self,
        objects: Objects,
        instance: str,
        *,
        omit: Iterable[str] = (),
        queued_max: int = EVENTS_QUEUED_MAX,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._objects = objects
        self._instance = instance
        self._omit = frozenset(omit)
        self._queued_max = queued_max
        self._clock_ns = clock_ns
        self._wall = wall
        self._queue: deque[Notice] = deque()
        self._lock = threading.Lock()
        self._series: OrderedDict[Notice, _Series] = OrderedDict()
        self._budgets: OrderedDict[Reference, tuple[float, int]] = OrderedDict()
        self._stamp = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Notices that found no place, no budget, or no API server."""
        self.written = 0

    def tell(self, notice: Notice) -> bool:
        """Take a notice; False when it is left out or dropped. Never waits."""
        if notice.reason in self._omit or not notice.regarding.name:
            return False
        with self._lock:
            if len(self._queue) >= self._queued_max:
                self.dropped += 1
                return False
            self._queue.append(notice)
        return True

    @property
    def queued_count(self) -> int:
        """Notices that wait."""
        return len(self._queue)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits and end the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def flush(self) -> None:
        """Write what waits, and the counts of series that went on."""
        while self._queue:
            self._write(self._queue.popleft())
        self._write_counts()

    def _run(self) -> None:
        while not self._stopping.wait(_FLUSH_S):
            self.flush()
        self.flush()

    def _write(self, notice: Notice) -> None:
        now_ns = self._clock_ns()
        series = self._series.get(notice)
        if series is not None and now_ns - series.seen_ns < _SERIES_NS:
            series.count += 1
            series.seen_ns = now_ns
            self._series.move_to_end(notice)
            return
        if not self._has_budget(notice.regarding, now_ns):
            self.dropped += 1
            return
        raw = self._event_of(notice)
        metadata = raw["metadata"]
        if not self._try(lambda: self._objects.create(EVENTS, raw)):
            return
        self.written += 1
        self._series[notice] = _Series(
            metadata["name"], metadata["namespace"], now_ns, written_ns=now_ns
        )
        while len(self._series) > _SERIES_MAX:
            self._series.popitem(last=False)

    def _write_counts(self) -> None:
        now_ns = self._clock_ns()
        for notice, series in list(self._series.items()):
            over = now_ns - series.seen_ns >= _SERIES_NS
            due = now_ns - series.written_ns >= _COUNT_AFTER_NS
            if series.count > series.written and (due or over):
                self._write_count(series, now_ns)
            if over:
                del self._series[notice]

    def _write_count(self, series: _Series, now_ns: int) -> None:
        patch = {
            "series": {"count": series.count, "lastObservedTime": self._micro_time()}
        }
        key = (series.namespace, series.name)
        self._try(lambda: self._objects.merge(EVENTS, key, patch))
        series.written, series.written_ns = series.count, now_ns

    def _try(self, write: Callable[[], Json]) -> bool:
        try:
            write()
        except KubeNotFound:
            # The namespace or the Event is gone: nobody misses it.
            return False
        except DependencyError as error:
            self.dropped += 1
            _log.warning("event not written: %s", error.message)
            return False
        return True

    def _has_budget(self, about: Reference, now_ns: int) -> bool:
        left, at_ns = self._budgets.pop(about, (_BURST, now_ns))
        left = min(_BURST, left + (now_ns - at_ns) / 1e9 * _REFILL_PER_S)
        enough = left >= 1
        self._budgets[about] = (left - 1 if enough else left, now_ns)
        while len(self._budgets) > _SERIES_MAX:
            self._budgets.popitem(last=False)
        return enough

    def _event_of(self, notice: Notice) -> Json:
        regarding = notice.regarding
        namespace = regarding.namespace or "default"
        # Two Events of one object within one tick of the clock need two names.
        self._stamp = max(self._stamp + 1, int(self._wall().timestamp() * 1e9))
        raw: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {
                "name": f"{event_name(regarding.name)}.{self._stamp:x}",
                "namespace": namespace,
            },
            "eventTime": self._micro_time(),
            "reportingController": notice.controller,
            "reportingInstance": f"{notice.controller}-{self._instance}"[:128],
            "action": notice.action,
            "reason": notice.reason,
            "type": "Normal" if notice.reason in _NORMAL else "Warning",
            "note": cut_note(notice.note),
            "regarding": regarding.as_json(),
        }
        if notice.related is not None:
            raw["related"] = notice.related.as_json()
        return raw

    def _micro_time(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event_name(name: str) -> str:
    """Return the first part of an Event's name (9.1), fit for a DNS name."""
    clean = _NOT_OF_A_NAME.sub("-", name.lower())[:200]
    head = "" if clean[:1].isalnum() else "a"
    tail = "" if clean[-1:].isalnum() else "z"
    return f"{head}{clean}{tail}"


def cut_note(note: str) -> str:
    """Cut a note as upstream does: 1021 and three dots."""
    if len(note.encode()) <= EVENT_NOTE_CHARACTERS_MAX:
        return note
    kept = note.encode()[: EVENT_NOTE_CHARACTERS_MAX - 3]
    return kept.decode("utf-8", "ignore") + "..."
