"""Keep fingerprints of the stored reports.

Room: reports. Takes: a Client, which kinds of reports. Gives: StoredReports.
Next: reports/writer.py. May touch: the API server through kube; informers' threads.
Source: docs/pools.md 4 (digests, taken from existing reports at take-over).

The informers may lag behind our own writes. So the version of each write is kept until
they have received it, and until then their data is not relied upon. Reports that we
wrote are not decoded again when the informers deliver them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import msgspec

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope
from kyverno_mp.reports.fingerprints import KEY_BYTES, each_fingerprint, result_of
from kyverno_mp.reports.objects import (
    KYVERNO,
    MANAGED_BY,
    ReportKinds,
    StoredReport,
    report_key,
    stored_report,
)
from kyverno_mp.results.entries import Subject


class StoredReports:
    """All reports that Kyverno wrote; threads may share it."""

    def __init__(self, client: Client, kinds: ReportKinds) -> None:
        self._lock = threading.Lock()
        self._written: dict[Key, tuple[str, StoredReport | None]] = {}
        """The version of our last write ("" = deleted) and the written report, until an
        informer has received it."""
        self._writing: Counter[Key] = Counter()
        """The number of threads that write each report."""
        self.informers = [
            Informer(
                client,
                WatchScope(resource=resource, label_selector=f"{MANAGED_BY}={KYVERNO}"),
                self._project,
            )
            for resource in (kinds.of_namespace, kinds.of_cluster)
        ]
        self._listed: dict[int, dict[Key, tuple[str, StoredReport | None]]] = {}
        """What was written before the current list of each informer began."""
        self.on_listed: Callable[[], None] = lambda: None
        """Called in an informer's thread when it has listed the reports again."""
        for number, informer in enumerate(self.informers):
            informer.on_change(self._seen)
            informer.on_list(partial(self._begin_list, number))
            informer.on_notified(partial(self._end_list, number))

    @property
    def synced(self) -> bool:
        """Whether all reports were listed at least once."""
        return all(informer.synced for informer in self.informers)

    def get(self, key: Key) -> StoredReport | None:
        """Return the fingerprints of a report."""
        return self._informer(key).get(key)

    def newest(self, key: Key) -> tuple[str, StoredReport | None] | None:
        """Return the version and the fingerprints of a report, after our last write.

        None: they are not known. ``("", None)``: no such report. If another writer has
        changed the report since, its version differs, and a write fails. Without a
        write, they count only if ``is_known``: the informer may have skipped our last
        version, e.g. because it listed the reports after a later change.
        """
        with self._lock:
            written = self._written.get(key)
        if written is None or self.is_known(key):
            return self._informer(key).entry(key) or ("", None)
        version, after = written
        return None if version and after is None else (version, after)

    def is_whole(self, key: Key) -> bool:
        """Return whether the informer knows the report and it has all rows."""
        report = self.get(key)
        return report is not None and not report.left_out and self.is_known(key)

    def results(self, subject: Subject) -> Mapping[bytes, str]:
        """Return the results of an object's report, by the key of the rule."""
        _, stored = self.newest(report_key(subject)) or ("", None)
        prints = () if stored is None else each_fingerprint(stored.fingerprints)
        return {
            fingerprint[:KEY_BYTES]: result_of(fingerprint) for fingerprint in prints
        }

    def is_known(self, key: Key) -> bool:
        """Return whether ``get`` reflects our last write."""
        if key not in self._written:
            return True
        self._seen(key)
        return key not in self._written

    def wrote(
        self, key: Key, resource_version: str, after: StoredReport | None = None
    ) -> None:
        """Record the version that we wrote or read; "" = the report was deleted.

        ``after``: the fingerprints of that version.
        """
        with self._lock:
            self._written[key] = resource_version, after
        self._seen(key)

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """List a report in ``unseen`` while it may be written.

        Enter it before the plan is read, because a write according to the old plan may
        reach the API server after the plan has changed.
        """
        with self._lock:
            self._writing[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._writing[key] -= 1
                if not self._writing[key]:
                    del self._writing[key]

    def unseen(self) -> set[Key]:
        """Return the reports whose last write may not have reached the informers."""
        with self._lock:
            return {*self._written, *self._writing}

    def is_settled(self, key: Key) -> bool:
        """Return whether no thread writes a report and ``get`` has our last write."""
        with self._lock:
            is_written = key in self._writing
        return not is_written and self.is_known(key)

    def items(self) -> Iterator[tuple[Key, StoredReport]]:
        """Yield all reports with their keys."""
        for informer in self.informers:
            yield from informer.snapshot().items()

    def __len__(self) -> int:
        return sum(map(len, self.informers))

    def _seen(self, key: Key) -> None:
        with self._lock:
            written = self._written.get(key)
            if written and written[0] == self._informer(key).version_of(key):
                del self._written[key]

    def _begin_list(self, number: int) -> None:
        with self._lock:
            self._listed[number] = {
                key: write
                for key, write in self._written.items()
                if self._number(key) == number
            }

    def _end_list(self, number: int) -> None:
        """Forget the versions that a list has skipped: its reports are newer.

        The report of a deleted object would otherwise be kept for ever.
        """
        with self._lock:
            listed = self._listed.pop(number, None)
            for key, write in (listed or {}).items():
                if self._written.get(key) is write:
                    del self._written[key]
        if listed is not None:
            self.on_listed()

    def _project(self, raw: msgspec.Raw) -> StoredReport | None:
        metadata = IDENTITY.decode(raw).metadata
        with self._lock:
            written = self._written.get((metadata.namespace, metadata.name))
        if written and written[0] == metadata.resource_version and written[1]:
            # PERF: 5 us instead of 150 us for decoding.
            return written[1]
        return stored_report(raw)

    def _informer(self, key: Key) -> Informer[StoredReport]:
        return self.informers[self._number(key)]

    @staticmethod
    def _number(key: Key) -> int:
        return 0 if key[0] else 1
