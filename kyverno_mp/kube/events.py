"""Write Events about policies and resources, with a budget; count repetitions.

Room: kube. Takes: EventInfo. Gives: events.k8s.io/v1 Events. Next: controllers, which
submit or write Events. May touch: the API server through kube/apply.py, the
clock.
Source: docs/behaviour/controllers 9.1 (reasons, names, notes, --omitEvents, queue of
1000, success events); Kubernetes Event series.

A repetition within a few minutes increases the count of its series and creates no new
Event. The first Event of each (objects, reason, topic) is always written. Events that
differ only in the message have a budget. An event that exceeds the queue or the budget
is dropped and counted; no caller waits.
"""

import contextlib
import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import (
    DependencyError,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.translate import is_in_ending_namespace
from kyverno_mp.limits import EVENT_NOTE_CHARACTERS_MAX, EVENTS_QUEUED_MAX
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
EVENTS: Final = Resource(group="events.k8s.io", version="v1", plural="events")
_APPLIED: Final = "PolicyApplied"
_NORMAL: Final = frozenset({_APPLIED, "PolicySkipped"})
_NOT_OF_A_NAME: Final = re.compile(r"[^a-z0-9.-]")
_SERIES_NS: Final = 6 * 60 * 10**9
"""K8S: a series ends after six minutes without a new occurrence."""
_SERIES_MAX: Final = 4096
_BURST: Final = 25.0
_REFILL_PER_S: Final = 1 / 10
"""Budget of Events that differ only in the message: 25 at once, then six a minute."""
_COUNT_AFTER_NS: Final = 30 * 10**9
"""A series' count is written at most twice a minute."""
_SEED_BITS: Final = 20
"""In a name, the low bits of the time stamp are a hash; a millisecond is irrelevant.
"""
Successes = Callable[[], frozenset[str] | None]
"""Actions whose PolicyApplied Events are written (successEventActions): empty = all,
None = none (generateSuccessEvents is off)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an Event is about."""

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
class EventInfo:
    """One occurrence (Kyverno: event.Info). ``controller`` e.g. ``kyverno-admission``.

    ``topic`` distinguishes events about the same objects, e.g. by rule.
    ``at_ns``: the wall-clock time of the occurrence, 0 = now. ``seed``, e.g. the uid of
    a request: the same occurrence always gets the same name, so that writing it twice
    creates one Event.
    """

    regarding: Reference
    related: Reference | None = None
    reason: str
    action: str
    note: str
    controller: str
    topic: str = ""
    at_ns: int = 0
    seed: str = ""


_Subject = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The operator's selection of Events: ``omit`` (omitEvents) lists reasons."""

    omit: frozenset[str] = frozenset()
    successes: Successes = frozenset

    def __call__(self, info: EventInfo) -> bool:
        """Return whether an occurrence becomes an Event."""
        if info.reason in self.omit:
            return False
        if info.reason != _APPLIED:
            return True
        actions = self.successes()
        return actions is not None and (not actions or info.action in actions)


def omitted_reasons(reasons: str) -> frozenset[str]:
    """Return the reasons of a comma-separated list (omitEvents)."""
    return frozenset(reason.strip() for reason in reasons.split(",") if reason.strip())


@dataclass(slots=True)
class _Series:
    """A written Event, and its number of repetitions."""

    name: str
    namespace: str
    seen_ns: int
    count: int = 1
    written: int = 1
    written_ns: int = 0


class Events:
    """Queues events from any thread; one thread writes them (``write``, ``flush``)."""

    def __init__(
        self,
        objects: Objects,
        instance: str,
        *,
        event_filter: Callable[[EventInfo], bool] = lambda _info: True,
        queued_max: int = EVENTS_QUEUED_MAX,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._objects = objects
        self._instance = instance
        self._filter = event_filter
        self._queued_max = queued_max
        self._clock_ns = clock_ns
        self._wall = wall
        self._queue: deque[EventInfo] = deque()
        self._lock = threading.Lock()
        self._series: OrderedDict[tuple[_Subject, int], _Series] = OrderedDict()
        self._budgets: OrderedDict[_Subject, tuple[float, int]] = OrderedDict()
        self._stamp = 0
        self.on_submit: Callable[[], object] | None = None
        """Called after each queued event, in any thread; it must not wait."""
        self.dropped = 0
        """Number of Events that were dropped, over budget or rejected."""
        self.written = 0

    def submit(self, info: EventInfo) -> bool:
        """Queue an event; False when it is filtered out or dropped. Never waits."""
        if not self.accepts(info):
            return False
        with self._lock:
            if len(self._queue) >= self._queued_max:
                self.dropped += 1
                return False
            self._queue.append(info)
        if self.on_submit is not None:
            self.on_submit()
        return True

    def accepts(self, info: EventInfo) -> bool:
        """Return whether the Event is possible and not filtered out.

        K8S: an Event cannot refer to an object whose name is still to be generated.
        """
        return bool(info.regarding.name) and self._filter(info)

    @property
    def queued_count(self) -> int:
        """Number of queued events."""
        return len(self._queue)

    @property
    def has_series(self) -> bool:
        """Whether a repetition of a written event would be counted."""
        return bool(self._series)

    def flush(self) -> None:
        """Write the queued events, and the counts of continued series.

        An event that cannot be written now stays queued.
        """
        try:
            while self._queue:
                self.write(self._queue[0])
                self._queue.popleft()
            self._write_counts()
        except DependencyError as error:
            _log.warning("cannot write Events, will retry: %s", error.message)

    def count(self, info: EventInfo) -> bool:
        """Count an event in its series; return False if it has no open series."""
        now_ns = self._clock_ns()
        key = (_subject_of(info), hash(info.note))
        series = self._series.get(key)
        if series is None or now_ns - series.seen_ns >= _SERIES_NS:
            return False
        series.count += 1
        series.seen_ns = now_ns
        self._series.move_to_end(key)
        return True

    def write(self, info: EventInfo) -> None:
        """Write an event that ``accepts`` allows, or count it in its series.

        Raises: DependencyError if the API server is unavailable. An event that it
        permanently rejects is dropped and counted.
        """
        if self.count(info):
            return
        now_ns = self._clock_ns()
        subject = _subject_of(info)
        key = (subject, hash(info.note))
        if not self._has_budget(subject, now_ns):
            self.dropped += 1
            return
        raw = self._event_of(info)
        if not self._create(raw):
            return
        self._spend(subject)
        metadata = raw["metadata"]
        self._series[key] = _Series(
            metadata["name"], metadata["namespace"], now_ns, written_ns=now_ns
        )
        while len(self._series) > _SERIES_MAX:
            self._series.popitem(last=False)

    def _create(self, raw: Json) -> bool:
        """Create an Event; False when a retry cannot help. Raises: DependencyError."""
        try:
            self._objects.create(EVENTS, raw)
        except KubeConflict:
            # An earlier attempt wrote the Event, but its response was lost.
            return True
        except KubeNotFound:
            # The namespace is deleted or terminating: the Event is not needed.
            return False
        except KubeRefused as error:
            if is_in_ending_namespace(error):
                return False
            self.dropped += 1
            _log.warning("event rejected: %s", error.message)
            return False
        self.written += 1
        return True

    def _write_counts(self) -> None:
        now_ns = self._clock_ns()
        for key, series in list(self._series.items()):
            over = now_ns - series.seen_ns >= _SERIES_NS
            due = now_ns - series.written_ns >= _COUNT_AFTER_NS
            if series.count > series.written and (due or over):
                self._write_count(series, now_ns)
            if over:
                del self._series[key]

    def _write_count(self, series: _Series, now_ns: int) -> None:
        patch = {
            "series": {"count": series.count, "lastObservedTime": self._micro_time()}
        }
        key = (series.namespace, series.name)
        # K8S: an Event is deleted after an hour, and a later update fails.
        with contextlib.suppress(KubeNotFound, KubeRefused):
            self._objects.merge(EVENTS, key, patch)
        series.written, series.written_ns = series.count, now_ns

    def _has_budget(self, subject: _Subject, now_ns: int) -> bool:
        tokens, at_ns = self._budgets.pop(subject, (_BURST, now_ns))
        tokens = min(_BURST, tokens + (now_ns - at_ns) / 1e9 * _REFILL_PER_S)
        self._budgets[subject] = (tokens, now_ns)
        while len(self._budgets) > _SERIES_MAX:
            self._budgets.popitem(last=False)
        return tokens >= 1

    def _spend(self, subject: _Subject) -> None:
        tokens, at_ns = self._budgets[subject]
        self._budgets[subject] = (tokens - 1, at_ns)

    def _event_of(self, info: EventInfo) -> Json:
        regarding = info.regarding
        namespace = regarding.namespace or "default"
        if info.seed:
            stamp = seeded_stamp(info)
        else:
            # Two Events about one object in the same clock tick need different names.
            now_ns = int(self._wall().timestamp() * 1e9)
            stamp = self._stamp = max(self._stamp + 1, now_ns)
        raw: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {
                "name": f"{event_name(regarding.name)}.{stamp:x}",
                "namespace": namespace,
            },
            "eventTime": self._micro_time(info.at_ns),
            "reportingController": info.controller,
            "reportingInstance": f"{info.controller}-{self._instance}"[:128],
            "action": info.action,
            "reason": info.reason,
            "type": "Normal" if info.reason in _NORMAL else "Warning",
            "note": cut_note(info.note),
            "regarding": regarding.as_json(),
        }
        if info.related is not None:
            raw["related"] = info.related.as_json()
        return raw

    def _micro_time(self, at_ns: int = 0) -> str:
        at = datetime.fromtimestamp(at_ns / 1e9, UTC) if at_ns else self._wall()
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _subject_of(info: EventInfo) -> _Subject:
    on, related = info.regarding, info.related
    # K8S: each attempt to create an object assigns another uid, but the attempts are
    # repetitions of one occurrence.
    about = (
        (related.api_version, related.kind, related.namespace, related.name)
        if related is not None
        else ()
    )
    return (
        on.api_version,
        on.kind,
        on.namespace,
        on.name,
        on.uid,
        *about,
        info.reason,
        info.action,
        info.controller,
        info.topic,
    )


def seeded_stamp(info: EventInfo) -> int:
    """Return the time of the occurrence with its hash in the low bits."""
    content = repr((info.seed, *_subject_of(info), info.note))
    digest = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=4).digest()
    low = int.from_bytes(digest, "big") & ((1 << _SEED_BITS) - 1)
    return info.at_ns >> _SEED_BITS << _SEED_BITS | low


def event_name(name: str) -> str:
    """Return the first part of an Event's name (9.1), valid in a DNS name."""
    clean = _NOT_OF_A_NAME.sub("-", name.lower())[:200]
    head = "" if clean[:1].isalnum() else "a"
    tail = "" if clean[-1:].isalnum() else "z"
    return f"{head}{clean}{tail}"


def cut_note(note: str) -> str:
    """Truncate a note as upstream does: 1021 characters and three dots."""
    if len(note.encode()) <= EVENT_NOTE_CHARACTERS_MAX:
        return note
    beginning = note.encode()[: EVENT_NOTE_CHARACTERS_MAX - 3]
    return beginning.decode("utf-8", "ignore") + "..."
