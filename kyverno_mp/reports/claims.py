"""Find the stored objects of results of reviews, with few reads.

Room: reports. Takes: subjects with the time of their newest result, what watches know,
the API server. Gives: Claims, Claimed. Next: reports/ephemeral.py merges the results.
May touch: the API server through kube/.
Source: docs/behaviour/controllers 6.6; docs/pools.md 4.

An object that no watch has received is looked for at most three times, at the ages
RESULTS_READ_AGES_S of its newest result, together with all others of its kind: a few
are read separately, many with one list. Between these ages nothing is read.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DependencyError, KubeNotFound, KubeRefused
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.kube.watch import IDENTITY, METADATA_ONLY, WatchScope, list_pages
from kyverno_mp.limits import (
    RESULTS_READ_AGES_S,
    RESULTS_READ_NAMESPACES_MAX,
    RESULTS_READ_PAUSE_S,
    RESULTS_READ_SHARE,
    RESULTS_READ_SINGLY_MAX,
    RESULTS_REFUSED_S,
    RESULTS_WATCHED_S_MAX,
)
from kyverno_mp.results.entries import Subject

_log = logging.getLogger(__name__)
UNCLAIMED: Final = "unclaimed"
FORBIDDEN: Final = "forbidden"
_METADATA: Final = METADATA_ONLY.format("PartialObjectMetadata")
_FORBIDDEN_CODE: Final = "kube.forbidden"
_SECOND_NS: Final = 10**9


class Claimed(NamedTuple):
    """The subjects that need not wait; all others do."""

    stored: dict[Subject, Subject]
    """The stored object of a subject, with its uid."""
    dropped: dict[Subject, str]
    """UNCLAIMED: the object was never stored; FORBIDDEN: its kind cannot be read."""


Claim = Callable[[Mapping[Subject, int]], Claimed]
"""Gets each subject with the wall-clock time of its newest result.

Raises: DependencyError."""


class _Place(NamedTuple):
    """What one read covers; no namespace: the whole cluster."""

    resource: Resource
    namespace: str


@dataclass(slots=True)
class _Search:
    """The search for one object."""

    at_ns: int
    """Time of the newest result."""
    since_ns: int
    """Time at which this result was first seen here: clocks of replicas differ."""
    read_ns: int = 0
    """Time of the last read; 0 = never."""

    def is_due(self, now_ns: int, first_s: int) -> bool:
        """Return whether an age has passed without a read; ``first_s``: the first."""
        start_ns = min(self.at_ns, self.since_ns)
        return any(
            self.read_ns < start_ns + age_s * _SECOND_NS <= now_ns
            for age_s in {first_s, *RESULTS_READ_AGES_S}
            if age_s >= first_s
        )

    def is_last(self, now_ns: int) -> bool:
        """Return whether no read follows after now."""
        age_ns = now_ns - min(self.at_ns, self.since_ns)
        return age_ns >= RESULTS_READ_AGES_S[-1] * _SECOND_NS


class Claims:
    """Finds the stored objects of subjects; one thread calls it."""

    def __init__(
        self,
        client: Client,
        resource_of: Callable[[str, str], Resource | None],
        uid_of: Callable[[Resource, Key], str | None],
        now_ns: Callable[[], int],
        failed: Callable[[Subject], None],
    ) -> None:
        """``resource_of``: the resource of a kind, None if it is not served.

        ``uid_of``: the uid that a watch has received; raises KeyError without a
        working watch. ``failed``: called in the handler of an unexpected error that
        concerns one subject.
        """
        self._client = client
        self._resource_of = resource_of
        self._uid_of = uid_of
        self._now_ns = now_ns
        self._failed = failed
        self._searches: dict[Subject, _Search] = {}
        self._stored: dict[Subject, Subject] = {}
        self._next_ns: dict[_Place, int] = {}
        """Earliest time of the next read of a place."""
        self._refused_ns: dict[_Place, int] = {}
        """Until then, the permission is not tried again."""

    def __call__(self, newest: Mapping[Subject, int]) -> Claimed:
        """Return the subjects that need not wait. Raises: DependencyError."""
        now_ns = self._now_ns()
        self._forget(newest, now_ns)
        claimed = Claimed({}, {})
        due: dict[_Place, list[Subject]] = {}
        for subject, at_ns in newest.items():
            search = self._search(subject, at_ns, now_ns)
            try:
                location = self._examine(subject, search, claimed)
            except DependencyError:
                raise
            except Exception:  # noqa: BLE001 - the results of other objects are merged
                self._failed(subject)
                location = None
                if search.is_last(now_ns):
                    claimed.dropped[subject] = UNCLAIMED
            if location is not None:
                due.setdefault(location, []).append(subject)
        for location, subjects in self._batches(due):
            self._look(location, subjects, claimed)
        return claimed

    def _forget(self, newest: Mapping[Subject, int], now_ns: int) -> None:
        """Forget what nobody waits for any more."""
        for searches in (self._searches, self._stored):
            for subject in searches.keys() - newest.keys():
                del searches[subject]
        self._next_ns = {
            location: at_ns
            for location, at_ns in self._next_ns.items()
            if at_ns > now_ns
        }
        kept_ns = now_ns - RESULTS_REFUSED_S * _SECOND_NS
        self._refused_ns = {
            location: at_ns
            for location, at_ns in self._refused_ns.items()
            if at_ns > kept_ns
        }

    def _search(self, subject: Subject, at_ns: int, now_ns: int) -> _Search:
        search = self._searches.get(subject)
        if search is None:
            search = self._searches[subject] = _Search(at_ns, now_ns)
        elif search.at_ns != at_ns:
            search.at_ns, search.since_ns = at_ns, now_ns
        return search

    def _examine(
        self, subject: Subject, search: _Search, claimed: Claimed
    ) -> _Place | None:
        """Claim a known object; otherwise return where to read, None if not now.

        Raises: DependencyError.
        """
        now_ns = self._now_ns()
        if subject in self._stored:
            claimed.stored[subject] = self._stored[subject]
            return None
        resource = self._resource_of(subject.api_version, subject.kind)
        if resource is None or not subject.name:
            if search.is_last(now_ns):
                claimed.dropped[subject] = UNCLAIMED
            return None
        first_s = RESULTS_WATCHED_S_MAX
        try:
            uid = self._uid_of(resource, (subject.namespace, subject.name))
        except KeyError:
            uid, first_s = None, 0
        if uid and subject.uid in ("", uid):
            self._claim(subject, uid, claimed)
            return None
        is_due = search.is_due(now_ns, first_s)
        return _Place(resource, subject.namespace) if is_due else None

    def _batches(
        self, due: Mapping[_Place, list[Subject]]
    ) -> Iterable[tuple[_Place, list[Subject]]]:
        """Yield the subjects of each read: one for many namespaces of a kind."""
        by_resource: dict[Resource, list[_Place]] = {}
        for location in due:
            by_resource.setdefault(location.resource, []).append(location)
        for resource, places in by_resource.items():
            cluster_wide = _Place(resource, "")
            if (
                len(places) > RESULTS_READ_NAMESPACES_MAX
                and self._may_read(cluster_wide)
                and not self._must_pause(cluster_wide)
            ):
                together = [subject for location in places for subject in due[location]]
                yield cluster_wide, together
            if len(places) > RESULTS_READ_NAMESPACES_MAX and self._may_read(
                cluster_wide
            ):
                continue
            for location in places:
                yield location, due[location]

    def _may_read(self, location: _Place) -> bool:
        return self._refused_ns.get(location, 0) <= self._now_ns()

    def _must_pause(self, location: _Place) -> bool:
        return self._next_ns.get(location, 0) > self._now_ns()

    def _look(
        self, location: _Place, subjects: list[Subject], claimed: Claimed
    ) -> None:
        """Read objects; drop the results of those that were looked for often enough."""
        if self._must_pause(location):
            return
        try:
            uids = self._read(location, subjects)
        except KubeRefused as error:
            self._refuse(location, error, subjects, claimed)
            return
        except DependencyError as error:
            self._next_ns[location] = self._now_ns() + RESULTS_READ_PAUSE_S * _SECOND_NS
            _log.warning("results of reviews wait: %s", error)
            return
        now_ns = self._now_ns()
        for subject in subjects:
            uid = uids.get((subject.namespace, subject.name))
            search = self._searches[subject]
            search.read_ns = now_ns
            if uid and subject.uid in ("", uid):
                self._claim(subject, uid, claimed)
            elif search.is_last(now_ns):
                claimed.dropped[subject] = UNCLAIMED

    def _read(self, location: _Place, subjects: list[Subject]) -> dict[Key, str]:
        """Return the uids of stored objects. Raises: DependencyError, KubeRefused."""
        if not self._may_read(location):
            raise KubeRefused(_FORBIDDEN_CODE, f"{location.resource.name} is forbidden")
        started_s = time.monotonic()
        keys = {(subject.namespace, subject.name) for subject in subjects}
        if len(keys) <= RESULTS_READ_SINGLY_MAX:
            uids = {key: self._uid(location.resource, key) for key in keys}
        else:
            uids = self._listed(location, keys)
        took_s = time.monotonic() - started_s
        pause_s = max(RESULTS_READ_PAUSE_S, took_s / RESULTS_READ_SHARE)
        self._next_ns[location] = self._now_ns() + int(pause_s * _SECOND_NS)
        return uids

    def _uid(self, resource: Resource, key: Key) -> str:
        path = resource.object(key)
        try:
            body = self._client.call(Call(method="GET", path=path, accept=_METADATA))
        except KubeNotFound:
            return ""
        return IDENTITY.decode(body).metadata.uid

    def _listed(self, location: _Place, keys: set[Key]) -> dict[Key, str]:
        """List a place until all objects are known."""
        scope = WatchScope(
            resource=location.resource, namespace=location.namespace, metadata_only=True
        )
        uids: dict[Key, str] = {}
        try:
            for page in list_pages(self._client, scope):
                for raw in page.items:
                    metadata = IDENTITY.decode(raw).metadata
                    key = metadata.namespace, metadata.name
                    if key in keys:
                        uids[key] = metadata.uid
                if len(uids) == len(keys):
                    break
        except KubeNotFound:
            # The kind is no longer served.
            return {}
        return uids

    def _claim(self, subject: Subject, uid: str, claimed: Claimed) -> None:
        stored = msgspec.structs.replace(subject, uid=uid)
        self._stored[subject] = claimed.stored[subject] = stored

    def _refuse(
        self,
        location: _Place,
        error: KubeRefused,
        subjects: list[Subject],
        claimed: Claimed,
    ) -> None:
        """Drop results of a kind that may not be read; try the whole cluster's parts.

        KYVERNO: these results are never merged (6.6).
        """
        now_ns = self._now_ns()
        if error.code != _FORBIDDEN_CODE:
            _log.warning("results of reviews wait: %s", error)
            self._next_ns[location] = now_ns + RESULTS_READ_PAUSE_S * _SECOND_NS
            subjects = [
                subject
                for subject in subjects
                if self._searches[subject].is_last(now_ns)
            ]
        elif self._may_read(location):
            _log.warning("discarding results of reviews: %s", error)
            self._refused_ns[location] = now_ns + RESULTS_REFUSED_S * _SECOND_NS
        namespaces = {subject.namespace for subject in subjects}
        if not location.namespace and namespaces != {""}:
            # Permissions may exist in some namespaces; the next call reads them.
            return
        claimed.dropped.update(dict.fromkeys(subjects, FORBIDDEN))
