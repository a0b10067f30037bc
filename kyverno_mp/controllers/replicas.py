"""Tell other replicas which changes of policies this one enforces, and hear of theirs.

Room: controllers. Takes: resource versions that every worker of this replica has in
force. Gives: which replicas are behind a version; the holder tells Ready by it.
Next: controllers/policy_status.py. May touch: one ConfigMap, through kube/apply.py.
Source: docs/behaviour/controllers 3.8 knows one replica only. K8S: resource versions of
one resource can be compared as numbers (KEP-5504).

    data:
      <pod>: '{"versions": {"clusterpolicies": 7012, "policies": 6990}, "beat": 41}'

A replica that says nothing for a while is gone, and nobody waits for it any more. One
that speaks and stays behind holds up Ready, and the log names it; never a review.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.queues.reconcile import Result

_log = logging.getLogger(__name__)
CONTROLLER: Final = "replicas-controller"
ALL: Final = "all"
"""The one key."""
CONFIG_MAPS: Final = core("configmaps")
NAME: Final = "kyverno-mp-replicas"
Versions = Mapping[str, int]
"""Resource version by plural name of the resource."""
_BEAT_NS: Final = 8 * 10**9
_AGAIN_S: Final = _BEAT_NS / 1e9
_SOON_S: Final = 0.1
_PAUSE_NS: Final = 200 * 10**6
"""Policies that come by the hundred are told of together."""
_SILENT_NS: Final = 25 * 10**9
"""Three beats: who is silent so long is not waited for."""
_TOLD_NS: Final = 10 * 10**9
"""Who is behind for so long, and says nothing new, is named in the log."""
_FORGOTTEN_NS: Final = 10 * 60 * 10**9


class _Claim(msgspec.Struct, frozen=True):
    """What one replica said last."""

    versions: dict[str, int] = {}
    beat: int = 0


class _Listing(msgspec.Struct):
    data: dict[str, str] | None = None


def scope_of(namespace: str) -> WatchScope:
    """Return what to watch; ``Replicas.hear`` is its projection."""
    selector = f"metadata.name={NAME}"
    return WatchScope(
        resource=CONFIG_MAPS, namespace=namespace, field_selector=selector
    )


def _nobody() -> None:
    """Hear of other replicas where nobody asks."""


class Replicas:
    """What this replica said and what the others did; ``tell`` is for one thread."""

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        identity: str,
        now_ns: Callable[[], int],
        on_moved: Callable[[], object] = _nobody,
    ) -> None:
        """``on_moved`` is called when another replica enforces something else."""
        self._objects = objects
        self._key = (namespace, NAME)
        self._identity = identity
        self._now_ns = now_ns
        self._on_moved = on_moved
        self._told = _Claim()
        self._told_ns = 0
        self._next_ns = 0
        self._failed = False
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[_Claim, int]] = {}
        self._behind_ns: dict[str, int] = {}
        """Since when those that are behind said nothing new; 0 = the log has it."""

    def hear(self, raw: msgspec.Raw) -> bytes:
        """Take in the ConfigMap; called by its informer's thread."""
        now_ns = self._now_ns()
        data = msgspec.json.decode(raw, type=_Listing).data or {}
        with self._lock:
            before, self._heard = self._heard, {}
            for identity, text in data.items():
                claim = _claim_of(text)
                known = before.get(identity)
                since_ns = known[1] if known and known[0] == claim else now_ns
                self._heard[identity] = claim, since_ns
                if known is None or known[0].versions != claim.versions:
                    self._behind_ns.pop(identity, None)
            for gone in self._behind_ns.keys() - data.keys():
                del self._behind_ns[gone]
            moved = self._versions_in(before) != self._versions_in(self._heard)
        if moved:
            self._on_moved()
        return b""

    def _versions_in(
        self, heard: Mapping[str, tuple[_Claim, int]]
    ) -> dict[str, Versions]:
        return {
            identity: claim.versions
            for identity, (claim, _) in heard.items()
            if identity != self._identity
        }

    def tell(self, versions: Versions) -> bool:
        """Write what this replica enforces; False when that has to be done soon."""
        now_ns = self._now_ns()
        moved = dict(versions) != self._told.versions
        if now_ns < self._next_ns:
            return self._failed or not moved
        if not moved and now_ns - self._told_ns < _BEAT_NS:
            return True
        claim = _Claim(dict(versions), self._told.beat + 1)
        data: dict[str, str | None] = dict.fromkeys(self._forgotten(now_ns))
        data[self._identity] = msgspec.json.encode(claim).decode()
        if self._write(data):
            self._told, self._told_ns = claim, now_ns
        self._next_ns = now_ns + (_BEAT_NS if self._failed else _PAUSE_NS)
        return True

    def leave(self) -> None:
        """Let nobody wait for this replica any more."""
        self._write({self._identity: None})

    def behind(self, resource: str, version: int) -> tuple[str, ...]:
        """Return the other replicas that do not enforce a version yet."""
        now_ns = self._now_ns()
        with self._lock:
            found = tuple(
                identity
                for identity, (claim, since_ns) in self._heard.items()
                if identity != self._identity
                and now_ns - since_ns < _SILENT_NS
                and claim.versions.get(resource, version) < version
            )
            for identity in found:
                since_ns = self._behind_ns.setdefault(identity, now_ns)
                if since_ns and now_ns - since_ns > _TOLD_NS:
                    self._behind_ns[identity] = 0
                    _log.warning(
                        "policies become Ready only after replica %s has loaded them",
                        identity,
                    )
        return found

    def _forgotten(self, now_ns: int) -> list[str]:
        with self._lock:
            return [
                identity
                for identity, (_, since_ns) in self._heard.items()
                if now_ns - since_ns > _FORGOTTEN_NS
            ]

    def _write(self, data: Mapping[str, str | None]) -> bool:
        """Merge into the ConfigMap; a failure costs that nobody waits for us."""
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
    """When this replica tells the others; ``reconcile`` is for one thread."""

    def __init__(
        self, replicas: Replicas, in_force: Callable[[], Versions | None]
    ) -> None:
        """``in_force``: what all workers have, None while they attach something."""
        self._replicas = replicas
        self._in_force = in_force

    def reconcile(self, _key: str) -> Result:
        """Tell the others what all workers of this replica have in force."""
        versions = self._in_force()
        if versions is None:
            return Result(retry=True)
        if versions and not self._replicas.tell(versions):
            return Result(after_s=_SOON_S)
        return Result(after_s=_AGAIN_S)


def _claim_of(text: str) -> _Claim:
    """Read what a replica said; of what is not ours nothing is waited for."""
    try:
        return msgspec.json.decode(text, type=_Claim)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Claim()
