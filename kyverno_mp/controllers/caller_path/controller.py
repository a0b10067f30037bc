"""Reconcile the Secret with the path segments that prove the API server's calls.

Room: controllers. Takes: Objects, an Election, Inputs. Gives: the registered segment
for webhook configurations, Callers for the workers. Next: plan.py decides;
controllers/webhook_config/controller.py registers the segment.
May touch: the API server through kube, the clock, randomness.
Source: docs/SECURITY.md (the caller).

Every replica reads the Secret, because its workers accept the segments; only the lease
holder writes it. Each replica decides itself when it rejects calls without proof, from
what it observes: an older replica, or Kyverno, writes configurations without a segment
and reports no knowledge, whether or not the lease holder notices.
"""

import base64
import binascii
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.controllers.caller_path.known import Known
from kyverno_mp.controllers.caller_path.plan import Facts, Paths, plan
from kyverno_mp.controllers.certificates.reconcile import SECRETS
from kyverno_mp.controllers.deregister import DEPLOYMENTS
from kyverno_mp.errors import KubeConflict, KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rights import Right
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.snapshot.callers import PREFIX, RANDOM_BYTES, Callers
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
NAME: Final = "caller-path-controller"
ALL: Final = "all"
"""The key of what events report."""
LOOK: Final = "look"
"""The key of the look at what no event reports: replicas, and their failed calls."""
ANY_SERIAL: Final = 2**53
"""The number of the newest segment for a replica that accepts every segment."""
TEMPLATE_KNOWS: Final = "kyverno-mp.io/caller-path"
"""The label of pods of a version that understands paths with a segment."""
_DEPLOYMENT: Final = f"{DEPLOYMENTS.plural}.{DEPLOYMENTS.group}"
_UNKNOWN_PODS: Final = (
    "pods of Kyverno might answer, so the calls of the API server have no proof, and"
    " namespaced policies in CEL keep Kyverno's paths"
)
_PATHS: Final = "paths"
_FOLLOW_S: Final = 1.0
"""A version without path segments can be ready seconds after its pod is created."""
_RESYNC_S: Final = 10.0
"""For what a watch may have missed."""
_DECODER: Final = msgspec.json.Decoder(Paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The names and times. ``deployment``: "" if it is unknown."""

    secret: Key
    deployment: str
    overlap_s: float
    rotate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the controller observes and whom it tells."""

    own: Callable[[], Known]
    others: Callable[[], Mapping[str, Known]]
    """Returns the other replicas that report, by their names."""
    silent: Callable[[], frozenset[str]]
    """Returns the replicas that stopped reporting without leaving."""
    registered: Callable[[], frozenset[str]]
    """Returns the segments of all our webhooks in the API server; "" for webhooks
    without one; empty before the first list."""
    publish: Callable[[Callers], None]
    on_registered: Callable[[], object]
    """Called when other paths must be registered."""
    lacks: Callable[[Mapping[Right, str]], None] = lambda _rights: None
    """Takes the permissions that are missing, each with the effect."""


class CallerPathController:
    """The path segments of one replica; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        objects: Objects,
        election: Election,
        rules: Rules,
        inputs: Inputs,
        clock: Clock,
        *,
        is_on: bool = True,
    ) -> None:
        """``is_on``: whether this replica registers paths with a segment."""
        self._objects = objects
        self._guarded = objects.guarded(election.guard)
        self._election = election
        self._rules = rules
        self._inputs = inputs
        self._clock = clock
        self._is_on = is_on
        self._paths = Paths()
        self._holding_since_s: float | None = None
        """Since when, by the monotonic clock, every call carries a proof."""
        self._exposures: dict[str, int] | None = None
        """The failed calls by replica that the Secret accounts for; None at first."""
        self._problem = ""
        self._replicas_seen: tuple[object, ...] = ()
        self._is_settled = False
        """Whether nothing is due before something changes, or the path is replaced."""
        self._is_alone = False
        """Whether only pods may answer that understand our own paths."""
        self.is_read = False
        """Whether the Secret was read, or may not be read."""

    def segment(self) -> str:
        """Return the segment to register, "" for none."""
        return self._paths.segment()

    @property
    def needs_upstream_paths(self) -> bool:
        """Whether pods may answer that know only the paths that Kyverno registers."""
        return not self._is_alone

    def reconcile(self, key: str) -> Result:
        """Read the Secret, lead if this replica holds the lease, tell the workers.

        PERF: a look that finds no change reads nothing.
        Raises: DependencyError, LeaseLost.
        """
        replicas = self._seen_replicas()
        if key == LOOK and self._is_settled and replicas == self._replicas_seen:
            return Result(after_s=_FOLLOW_S)
        self._replicas_seen, self._is_settled = replicas, False
        result = self._reconcile() if self._is_on else self._without_segments()
        if result.retry:
            return result
        # Until it is settled, each look reconciles.
        return Result(after_s=_FOLLOW_S if key == LOOK else _RESYNC_S)

    def _seen_replicas(self) -> tuple[object, ...]:
        election, inputs = self._election, self._inputs
        term = election.terms_held if election.holds() else 0
        return inputs.own(), inputs.others(), inputs.silent(), term

    def _without_segments(self) -> Result:
        before, (can_keep, is_complete) = self._is_alone, self._replicas()
        self._is_alone = can_keep and is_complete
        self.is_read = True
        self._inputs.publish(Callers())
        if self._is_alone != before:
            self._inputs.on_registered()
        self._is_settled = self._objects.is_followed
        return Result()

    def _reconcile(self) -> Result:
        before = self._paths.segment(), self._is_alone
        can_keep, is_complete = self._replicas()
        try:
            self._paths = self._read_or_lead(can_keep, is_complete)
        except KubeConflict:
            return Result(retry=True)
        except KubeRefused as error:
            # Without the permission, calls stay unproved; they are still answered. The
            # next version, which may not know segments, has its own permissions.
            self._paths = msgspec.structs.replace(self._paths, registered=0)
            self._note(error.message)
        self.is_read = True
        required = self._is_required(can_keep=can_keep)
        self._inputs.publish(self._paths.callers(required=required))
        self._is_alone = can_keep and is_complete
        if (self._paths.segment(), self._is_alone) != before:
            self._inputs.on_registered()
        # Events report the rest: of the Secret, the Deployment and the webhooks.
        self._is_settled = (
            self._objects.is_followed
            and len(self._paths.known) == 1
            and not self._paths.exposed
            and (required if self._paths.registered else not can_keep)
        )
        return Result()

    def _read_or_lead(self, can_keep: bool, is_complete: bool) -> Paths:  # noqa: FBT001
        raw = self._objects.find(SECRETS, self._rules.secret)
        paths = paths_in(raw)
        if not paths.known and self._paths.known:
            # Somebody deleted it, perhaps to get another segment; without a gap, too.
            paths = msgspec.structs.replace(self._paths, exposed=True)
        others = self._inputs.others()
        counts = {name: one.exposures for name, one in others.items()}
        counts[""] = self._inputs.own().exposures
        if not self._election.holds():
            # What the lease holder has not stored when it ends is left to us.
            if self._exposures is None or paths != self._paths:
                self._exposures = counts
            return paths
        planned = self._planned(paths, can_keep, is_complete, self._is_exposed(counts))
        if planned != paths_in(raw):
            self._write(raw, planned)
        # Afterwards: failures that could not be stored are still to be stored.
        self._exposures = counts
        return planned

    def _planned(
        self,
        paths: Paths,
        can_keep: bool,  # noqa: FBT001
        is_complete: bool,  # noqa: FBT001
        is_exposed: bool,  # noqa: FBT001
    ) -> Paths:
        known = (self._inputs.own(), *self._inputs.others().values())
        serials = [one.serial for one in known]

        def all_know(serial: int) -> bool:
            return is_complete and all(
                one is not None and one >= serial for one in serials
            )

        facts = Facts(
            self._clock.now().timestamp(),
            can_keep,
            all_know,
            lambda segment: self._inputs.registered() == {segment},
            is_exposed,
        )
        return plan(
            paths,
            facts,
            new_segment,
            overlap_s=self._rules.overlap_s,
            rotate_s=self._rules.rotate_s,
        )

    def _is_exposed(self, counts: Mapping[str, int]) -> bool:
        """Return whether calls have failed that the Secret does not account for.

        So did those to a replica that has died or was restarted, and those before this
        process began to lead: an outage may have preceded it.
        """
        before = self._exposures
        if before is None or not self._inputs.silent().isdisjoint(before):
            return True
        return any(count != before.get(name, 0) for name, count in counts.items())

    def _replicas(self) -> tuple[bool, bool]:
        """Return whether segments can stay, and whether all replicas understand them.

        SAFETY: Kyverno and old versions answer 404 to a path with a segment, so pods
        that nobody knows prevent its registration.
        """
        known = [self._inputs.own(), *self._inputs.others().values()]
        if any(one.serial is None for one in known):
            return False, False
        if not self._rules.deployment:
            return True, True
        namespace = self._rules.secret[0]
        try:
            found = self._objects.find(DEPLOYMENTS, (namespace, self._rules.deployment))
        except KubeRefused as error:
            self._note(error.message)
            self._inputs.lacks({Right("get", _DEPLOYMENT, namespace): _UNKNOWN_PODS})
            return False, False
        self._inputs.lacks({})
        if found is None:
            return True, True
        pods = _Pods.of(found)
        reports_all = len(known) >= pods.count
        # New pods without the label may be ready before the configurations are written,
        # so the segment goes when the Deployment changes, and not when they start.
        can_keep = pods.is_new or (reports_all and not pods.old)
        return can_keep, reports_all or (pods.is_new and not pods.old)

    def _is_required(self, *, can_keep: bool) -> bool:
        """Return whether a call without proof cannot be the API server's."""
        registered = self._inputs.registered()
        known = {one.segment for one in self._paths.known}
        now_s = self._clock.monotonic_s()
        if not (can_keep and registered and registered <= known):
            self._holding_since_s = None
            return False
        if self._holding_since_s is None:
            self._holding_since_s = now_s
        return now_s - self._holding_since_s >= self._rules.overlap_s

    def _write(self, raw: Json | None, paths: Paths) -> None:
        namespace, name = self._rules.secret
        data = {_PATHS: base64.b64encode(msgspec.json.encode(paths)).decode()}
        if raw is None:
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "metadata": {"namespace": namespace, "name": name},
                "data": data,
            }
            self._guarded.create(SECRETS, made)
        else:
            self._guarded.replace(SECRETS, {**raw, "data": data})
        _log.info(
            "path segments of callers: registered number %d of %s",
            paths.registered,
            [one.serial for one in paths.known],
        )

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("the API server's calls cannot be proved: %s", problem)


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods of our Deployment. ``is_new``: new ones understand segments."""

    count: int
    old: int
    is_new: bool

    @classmethod
    def of(cls, raw: Json) -> "_Pods":
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        template = (spec.get("template") or {}).get("metadata") or {}
        is_new = bool((template.get("labels") or {}).get(TEMPLATE_KNOWS))
        count = int(status.get("replicas") or 0)
        updated = int(status.get("updatedReplicas") or 0)
        seen = int(status.get("observedGeneration") or 0)
        is_seen = seen >= int((raw.get("metadata") or {}).get("generation") or 0)
        return cls(count, count - updated if is_seen else count, is_new)


def new_segment() -> str:
    """Return a segment with 160 random bits."""
    return PREFIX + secrets.token_hex(RANDOM_BYTES)


def paths_in(raw: Json | None) -> Paths:
    """Return the content of the Secret; a damaged one counts as empty."""
    text = ((raw or {}).get("data") or {}).get(_PATHS)
    try:
        paths = _DECODER.decode(base64.b64decode(text or "", validate=True))
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, TypeError):
        return Paths()
    return paths if paths.is_sound() else Paths()
