"""Follow the policy reports of the cluster.

Room: dashboard. Takes: a Client, the kinds of reports. Gives: ReportWatch, which keeps
Results current. Next: results.py. May touch: the API server through kube, one thread
for each kind, and one that reads reports again when there is space for them.
Source: docs/dashboard.md.

The reports of all programs are read, not only ours, so that a page shows all results of
an object. A report is passed to Results when it is read, so a list is never kept twice.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Final

import msgspec

from kyverno_mp.dashboard.entries import Entry
from kyverno_mp.dashboard.results import Key, Results
from kyverno_mp.dashboard.stored import entries_of, shortened
from kyverno_mp.errors import InputError, KubeNotFound
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope
from kyverno_mp.reports.objects import ReportKinds
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
_FAILING: Final = 3
_REFILL_S: Final = 10.0


class _Follower:
    """Follows one kind of reports. Its informer only keeps which reports are valid."""

    def __init__(self, client: Client, resource: Resource, results: Results) -> None:
        self._results = results
        self._lists = 0
        self.resource = resource
        self.informer: Informer[bool] = Informer(
            client, WatchScope(resource=resource), self._project
        )
        self.informer.on_list(lambda: results.begin(resource.kind))
        self.informer.on_change(self._changed)
        self.informer.on_notified(self._delivered)

    @property
    def malformed(self) -> int:
        """The number of reports that do not have the structure of their kind."""
        return sum(not is_sound for is_sound in self.informer.snapshot().values())

    def _project(self, raw: msgspec.Raw) -> bool | None:
        """Return whether a report is valid, or None if there are too many reports."""
        metadata = IDENTITY.decode(raw).metadata
        key = (self.resource.kind, metadata.namespace, metadata.name)
        try:
            entries = tuple(_entries(msgspec.json.decode(raw)))
        except (InputError, *UNDECODABLE) as error:
            _log.warning("%s %s: skipped: %s", *key[::2], error)
            self._results.remove(key)
            return False
        is_kept = self._results.put(key, entries, metadata.resource_version)
        return True if is_kept else None

    def _changed(self, key: tuple[str, str]) -> None:
        if self.informer.get(key) is None:
            self._results.remove((self.resource.kind, *key))

    def _delivered(self) -> None:
        if self.informer.lists == self._lists:
            return
        # A failed list may have contained reports that were deleted since.
        self._lists = self.informer.lists
        kind = self.resource.kind
        self._results.keep_only(
            kind, {(kind, *key) for key in self.informer.snapshot()}
        )


class ReportWatch:
    """Follows both kinds of reports; their rows are in ``results``."""

    def __init__(
        self,
        client: Client,
        kinds: ReportKinds,
        results: Results,
        refill_s: float = _REFILL_S,
    ) -> None:
        """``refill_s``: the interval for reading again reports that did not fit."""
        self._client = client
        self._results = results
        self._refill_s = refill_s
        self._followers = [
            _Follower(client, resource, results)
            for resource in (kinds.of_namespace, kinds.of_cluster)
        ]
        self.informers = [follower.informer for follower in self._followers]
        self._resources = {
            follower.resource.kind: follower.resource for follower in self._followers
        }
        self._stopping = threading.Event()
        self._refilling = threading.Thread(
            target=self._refill, name="refill-reports", daemon=True
        )

    def start(self) -> None:
        """Start the threads."""
        for informer in self.informers:
            informer.start()
        self._refilling.start()

    def stop(self) -> None:
        """Stop the threads."""
        self._stopping.set()
        for informer in self.informers:
            informer.stop()
        self._refilling.join(timeout=5)

    @property
    def synced(self) -> bool:
        """Whether all reports were read at least once."""
        return all(informer.synced for informer in self.informers)

    def problems(self) -> list[str]:
        """Return why the results may be incomplete or outdated."""
        problems = [
            f"{informer.scope.resource.plural} cannot be read: {informer.last_error}"
            for informer in self.informers
            if informer.failures >= _FAILING
        ]
        broken = sum(follower.malformed for follower in self._followers)
        if broken:
            problems.append(
                "1 report does not have the structure of its kind"
                if broken == 1
                else f"{broken:,} reports do not have the structure of their kind"
            )
        return problems

    def _refill(self) -> None:
        while not self._stopping.wait(self._refill_s):
            for key, version in self._results.waiting():
                if self._stopping.is_set():
                    return
                try:
                    self._read_again(key, version)
                except KubeNotFound:
                    continue
                except Exception as error:  # noqa: BLE001 - the thread must not end
                    # The next round tries again, and the watch delivers changes.
                    _log.info("cannot read %s again: %s", "/".join(key), error)
                    break

    def _read_again(self, key: Key, version: str) -> None:
        kind, *name = key
        report = self._client.get(self._resources[kind].object((name[0], name[1])))
        metadata = IDENTITY.decode(msgspec.json.encode(report)).metadata
        if metadata.resource_version == version:
            self._results.fill(key, tuple(_entries(report)), version)


def _entries(report: Json) -> Iterator[Entry]:
    """Read a report. Raises: InputError or DecodeError for an invalid report."""
    if type(report) is not dict:
        raise msgspec.ValidationError("a report is not an object")
    return map(shortened, entries_of(report, "the cluster"))
