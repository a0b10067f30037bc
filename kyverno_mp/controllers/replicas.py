"""Report which policy changes this replica enforces, and read the others' reports.

Room: controllers. Takes: resource versions that every worker of this replica has in
force. Gives: the replicas that lag behind a version, for the lease holder's Ready
condition.
Next: controllers/policy_status.py. May touch: one ConfigMap, through kube/apply.py.
Source: docs/behaviour/controllers 3.8, which covers one replica only. K8S: resource
versions of one resource can be compared as numbers (KEP-5504).

    data:
      <pod>: '{"versions": {"clusterpolicies": 7012, "policies": 6990}, "beat": 41}'

A replica without reports for a while counts as gone, and the others stop waiting for
it. A replica that reports but lags delays Ready, and the log names it. It never delays
a review.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kyverno_mp.controllers.caller_path.known import Known
from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.queues.reconcile import Result

_log = logging.getLogger(__name__)
CONTROLLER: Final = "replicas-controller"
ALL: Final = "all"
"""The only key."""
CONFIG_MAPS: Final = core("configmaps")
NAME: Final = "kyverno-mp-replicas"
Versions = Mapping[str, int]
"""Resource version by the plural name of the resource."""
_BEAT_NS: Final = 12 * 10**9
"""Shorter than half of ``_SILENT_NS``, with time to try again."""
_RETRY_NS: Final = _BEAT_NS // 2
"""The pause after a write that failed."""
_SOON_S: Final = 0.1
_PAUSE_NS: Final = 200 * 10**6
"""The pause between writes, so that hundreds of policy changes share one write."""
_SILENT_NS: Final = 25 * 10**9
"""A replica without a report for this long counts as gone. Every version has this
time."""
_LOG_AFTER_NS: Final = 10 * 10**9
"""The log names a replica that lags for this long without progress."""
_FORGOTTEN_NS: Final = 10 * 60 * 10**9


class _Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last report of one replica; ``caller`` and ``exposed``: its Known."""

    versions: dict[str, int] = {}
    beat: int = 0
    caller: int | None = None
    exposed: int = 0

    def known(self) -> Known:
        """Return what the replica knows about its callers."""
        return Known(self.caller, self.exposed)


_REPORT = msgspec.json.Decoder(_Report)


class _Listing(msgspec.Struct):
    data: dict[str, str] | None = None


_LISTING = msgspec.json.Decoder(_Listing)


def scope_of(namespace: str) -> WatchScope:
    """Return the scope to watch; ``Replicas.read_reports`` is its projection."""
    selector = f"metadata.name={NAME}"
    return WatchScope(
        resource=CONFIG_MAPS, namespace=namespace, field_selector=selector
    )


def _nobody() -> None:
    """Ignore changes of other replicas."""


class Replicas:
    """The reports of this replica and others; call ``report`` from one thread only."""

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        identity: str,
        now_ns: Callable[[], int],
        on_moved: Callable[[], object] = _nobody,
    ) -> None:
        """``on_moved`` is called when another replica reports new versions."""
        self._objects = objects
        self._key = (namespace, NAME)
        self._identity = identity
        self._now_ns = now_ns
        self._on_moved = on_moved
        self.knows: Callable[[], Known] = lambda: Known(None)
        """Returns what this replica knows about its callers."""
        self._reported = _Report()
        self._reported_ns = 0
        self._next_ns = 0
        self._failed = False
        self._lock = threading.Lock()
        self._reports: dict[str, tuple[_Report, int]] = {}
        self._lagging_ns: dict[str, int] = {}
        """The time of each lagging replica's last progress, 0 if it was logged already.
        """

    def read_reports(self, raw: msgspec.Raw) -> bytes:
        """Read the ConfigMap; called in its informer's thread."""
        now_ns = self._now_ns()
        data = _LISTING.decode(raw).data or {}
        with self._lock:
            before, self._reports = self._reports, {}
            for identity, text in data.items():
                report = _report_of(text)
                known = before.get(identity)
                since_ns = known[1] if known and known[0] == report else now_ns
                self._reports[identity] = report, since_ns
                if known is None or known[0].versions != report.versions:
                    self._lagging_ns.pop(identity, None)
            for gone in self._lagging_ns.keys() - data.keys():
                del self._lagging_ns[gone]
            moved = self._versions_in(before) != self._versions_in(self._reports)
        if moved:
            self._on_moved()
        return b""

    def _versions_in(
        self, reports: Mapping[str, tuple[_Report, int]]
    ) -> dict[str, Versions]:
        return {
            identity: report.versions
            for identity, (report, _) in reports.items()
            if identity != self._identity
        }

    def report(self, versions: Versions) -> bool:
        """Write the enforced versions; return False if a write must follow soon."""
        now_ns, known = self._now_ns(), self.knows()
        moved = (
            dict(versions) != self._reported.versions or known != self._reported.known()
        )
        if now_ns < self._next_ns:
            return self._failed or not moved
        if not moved and now_ns - self._reported_ns < _BEAT_NS:
            return True
        report = _Report(
            dict(versions), self._reported.beat + 1, known.serial, known.exposures
        )
        data: dict[str, str | None] = dict.fromkeys(self._forgotten(now_ns))
        data[self._identity] = msgspec.json.encode(report).decode()
        if self._write(data):
            self._reported, self._reported_ns = report, now_ns
        self._next_ns = now_ns + (_RETRY_NS if self._failed else _PAUSE_NS)
        return True

    @property
    def pause_s(self) -> float:
        """How long the next report can wait if no version changes."""
        return (_RETRY_NS if self._failed else _BEAT_NS) / 1e9

    def leave(self) -> None:
        """Remove this replica's report, so that other replicas do not wait for it."""
        self._write({self._identity: None})

    def lagging(self, resource: str, version: int) -> tuple[str, ...]:
        """Return the other replicas that do not enforce a version yet."""
        now_ns = self._now_ns()
        with self._lock:
            found = tuple(
                identity
                for identity, (report, since_ns) in self._reports.items()
                if identity != self._identity
                and now_ns - since_ns < _SILENT_NS
                and report.versions.get(resource, version) < version
            )
            for identity in found:
                since_ns = self._lagging_ns.setdefault(identity, now_ns)
                if since_ns and now_ns - since_ns > _LOG_AFTER_NS:
                    self._lagging_ns[identity] = 0
                    _log.warning(
                        "policies become Ready only after replica %s has loaded them",
                        identity,
                    )
        return found

    def known(self) -> dict[str, Known]:
        """Return what each other reporting replica knows about its callers."""
        now_ns = self._now_ns()
        with self._lock:
            return {
                identity: report.known()
                for identity, (report, since_ns) in self._reports.items()
                if identity != self._identity and now_ns - since_ns < _SILENT_NS
            }

    def silent(self) -> frozenset[str]:
        """Return the replicas that stopped reporting without leaving."""
        now_ns = self._now_ns()
        with self._lock:
            return frozenset(
                identity
                for identity, (_, since_ns) in self._reports.items()
                if now_ns - since_ns >= _SILENT_NS
            )

    def _forgotten(self, now_ns: int) -> list[str]:
        with self._lock:
            return [
                identity
                for identity, (_, since_ns) in self._reports.items()
                if now_ns - since_ns > _FORGOTTEN_NS
            ]

    def _write(self, data: Mapping[str, str | None]) -> bool:
        """Merge our report into the ConfigMap; if this fails, others stop waiting."""
        try:
            try:
                self._objects.merge(CONFIG_MAPS, self._key, {"data": data})
            except KubeNotFound:
                self._create(data)
        except DependencyError as error:
            if not self._failed:
                _log.warning("replicas: %s", error.message)
            self._failed = True
            return False
        self._failed = False
        return True

    def _create(self, data: Mapping[str, str | None]) -> None:
        namespace, name = self._key
        kept = {key: text for key, text in data.items() if text is not None}
        if not kept:
            return
        raw = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": name},
            "data": kept,
        }
        try:
            self._objects.create(CONFIG_MAPS, raw)
        except KubeConflict:
            self._objects.merge(CONFIG_MAPS, self._key, {"data": data})


class ReplicasController:
    """Schedules this replica's reports; call ``reconcile`` from one thread only."""

    def __init__(
        self, replicas: Replicas, in_force: Callable[[], Versions | None]
    ) -> None:
        """``in_force``: the versions that all workers use, None while they attach."""
        self._replicas = replicas
        self._in_force = in_force

    def reconcile(self, _key: str) -> Result:
        """Report the versions that all workers of this replica have in force."""
        versions = self._in_force()
        if versions is None:
            return Result(retry=True)
        if versions and not self._replicas.report(versions):
            return Result(after_s=_SOON_S)
        return Result(after_s=self._replicas.pause_s)


def _report_of(text: str) -> _Report:
    """Parse a report; an invalid report delays no replica."""
    try:
        return _REPORT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Report()
