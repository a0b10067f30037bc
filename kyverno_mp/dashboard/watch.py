"""Follow the policy reports of the cluster.

Room: dashboard. Takes: a Client, the kinds of reports. Gives: ReportWatch, which keeps
Results current. Next: results.py. May touch: the API server through kube, one thread
for each kind. Source: docs/dashboard.md.

Reports of every program count, not only ours: a page that left some out would not say
what is true of an object.
"""

from typing import Final

import msgspec

from kyverno_mp.dashboard.entries import Counts, Entry, total
from kyverno_mp.dashboard.results import Results
from kyverno_mp.dashboard.stored import entries_of
from kyverno_mp.errors import InputError
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import DASHBOARD_RESULTS_MAX
from kyverno_mp.reports.objects import ReportKinds

_FAILING: Final = 3


class _Carried:
    """The results of a report on their way from its informer to Results."""

    __slots__ = ("counts", "entries")

    def __init__(self, entries: tuple[Entry, ...], counts: Counts) -> None:
        self.entries = entries
        self.counts = counts


class _Follower:
    """One kind of reports. A list brings all at once, which may be more than fit."""

    def __init__(self, client: Client, resource: Resource, results: Results) -> None:
        self._results = results
        self._carried = 0
        self._kind = resource.kind
        self.informer: Informer[_Carried] = Informer(
            client, WatchScope(resource=resource), self._project
        )
        self.informer.on_change(self._changed)
        self.informer.on_notified(self._delivered)

    def _project(self, raw: msgspec.Raw) -> _Carried:
        entries = _entries(raw)
        counts = total(entries)
        if self._carried + len(entries) > DASHBOARD_RESULTS_MAX:
            return _Carried((), counts)
        self._carried += len(entries)
        return _Carried(entries, counts)

    def _changed(self, key: Key) -> None:
        carried = self.informer.get(key)
        if carried is None:
            self._results.remove((self._kind, *key))
            return
        self._results.put((self._kind, *key), carried.entries, carried.counts)
        self._carried -= len(carried.entries)
        carried.entries = ()

    def _delivered(self) -> None:
        # After a new list: reports that are as they were.
        if self._carried:
            for one in self.informer.snapshot().values():
                one.entries = ()
            self._carried = 0


class ReportWatch:
    """Follows both kinds; ``results`` has what they say."""

    def __init__(self, client: Client, kinds: ReportKinds, results: Results) -> None:
        self.informers = [
            _Follower(client, one, results).informer
            for one in (kinds.of_namespace, kinds.of_cluster)
        ]

    def start(self) -> None:
        """Start the threads."""
        for one in self.informers:
            one.start()

    def stop(self) -> None:
        """End the threads."""
        for one in self.informers:
            one.stop()

    @property
    def synced(self) -> bool:
        """Whether all reports were read at least once."""
        return all(one.synced for one in self.informers)

    def problems(self) -> list[str]:
        """Return why the results may be incomplete or old."""
        found = [
            f"{one.scope.resource.plural} cannot be read: {one.last_error}"
            for one in self.informers
            if one.failures >= _FAILING
        ]
        broken = sum(one.malformed for one in self.informers)
        if broken:
            found.append(f"{broken:,} reports are not as their kind demands")
        return found


def _entries(raw: msgspec.Raw) -> tuple[Entry, ...]:
    """Read a report. Raises: msgspec.DecodeError, for one that is malformed."""
    report = msgspec.json.decode(raw)
    if type(report) is not dict:
        raise msgspec.ValidationError("a report is no object")
    try:
        return tuple(entries_of(report, "the cluster"))
    except InputError as error:
        raise msgspec.ValidationError(error.message) from error
