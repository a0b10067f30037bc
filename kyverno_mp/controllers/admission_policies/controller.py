"""Generate native admission policies, and delete them when they are obsolete.

Room: controllers. Takes: registered policies, exceptions, a Directory, an Election.
Gives: ValidatingAdmissionPolicies, MutatingAdmissionPolicies and bindings in the API
server; the GeneratedStatus of each source policy. Next: controllers/policy_status.py.
May touch: the API server through kube, the clock.
Source: docs/behaviour/controllers 13; docs/behaviour/cel 8; Kyverno
pkg/controllers/admissionpolicygenerator at v1.18.2.

A policy is enforced without a gap. First the objects are written. When the API server
has had time to load them, the status reports it, and the webhook skips the policy. In
the other direction, the status changes first, and the objects are deleted once every
worker of every replica evaluates the policy again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kyverno_mp.controllers.admission_policies.exceptions import Allows, KnownExceptions
from kyverno_mp.controllers.admission_policies.generated import (
    BINDING,
    MUTATING,
    PLURALS,
    VALIDATING,
    Generated,
    Source,
)
from kyverno_mp.controllers.admission_policies.objects import Foreign, GeneratedObjects
from kyverno_mp.controllers.admission_policies.plans import (
    GROUP,
    SOURCES,
    Pair,
    Plans,
    names_of,
    pairs_of,
)
from kyverno_mp.controllers.generated_status import GeneratedStatus
from kyverno_mp.errors import DependencyError, KubeConflict, KubeRefused
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.lease import Election
from kyverno_mp.limits import (
    GENERATED_POLICY_FAILURES_MAX,
    GENERATED_POLICY_WRITES_MAX,
)
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result

_log = logging.getLogger(__name__)
NAME: Final = "admissionpolicy-generator"
ALL: Final = "all"
"""The only key; unchanged policies cost nothing."""
_RESYNC_S: Final = 10.0
_FOLLOW_S: Final = 1.0
"""A replica without the lease checks again after this time."""
_LOADED_S: Final = 3.0
"""K8S: an API server compiles changed policies once a second."""
_REPLACED: Final = "skip generating {}: it was deleted, and is generated again."
_AGAIN_S: Final = 60.0
"""The interval between attempts to write a policy that the API server rejects."""
_FORBIDDEN: Final = "insufficient permissions to generate {}"
_PLURALS_SHOWN: Final = {
    PLURALS[VALIDATING]: "ValidatingAdmissionPolicies",
    PLURALS[MUTATING]: "MutatingAdmissionPolicies",
    PLURALS[f"{VALIDATING}{BINDING}"]: "ValidatingAdmissionPolicyBindings",
    PLURALS[f"{MUTATING}{BINDING}"]: "MutatingAdmissionPolicyBindings",
}
_EVENT: Final = "successfully generated validating admission policy {}{} from policy {}"
_Name = tuple[str, str]
"""Kind and name; namespaced policies are not converted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs that the controller reads at each reconcile."""

    registered: Callable[[], tuple[int, Iterable[object]]]
    """Returns the lease term of the last registration, 0 if there is none, and the
    policies that the webhooks cover."""
    exceptions: Callable[[], Iterable[bytes]]
    """Returns the cluster's PolicyExceptions of both groups, as JSON."""
    allows: Allows
    directory: Callable[[], Directory]
    in_force: Callable[[Source], bool]
    """Returns whether every worker of every replica uses the current version."""
    submit: Callable[[EventInfo], object]
    on_status_change: Callable[[], object]
    """Called when statuses must be written."""


class _Waits(Exception):
    """Raised if the policy needs another reconcile soon."""


class AdmissionPolicyController:
    """The generated policies of a cluster; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        objects: GeneratedObjects,
        plans: Plans,
        inputs: Inputs,
        election: Election,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._plans = plans
        self._inputs = inputs
        self._election = election
        self._clock = clock
        self._exceptions = KnownExceptions(inputs.allows)
        self._term = 0
        self._read_s: float | None = None
        self._statuses: dict[_Name, GeneratedStatus] = {}
        self._submitted: dict[_Name, GeneratedStatus] = {}
        """The statuses at the last call of ``on_status_change``."""
        self._failed: set[_Name] = set()
        """Policies whose last write failed; the other policies are written first."""
        self._written_s: dict[_Name, tuple[Generated, float]] = {}
        """The time when both objects of a policy first matched the plan."""
        self._replaced_s: dict[_Name, tuple[Source, float]] = {}
        """The time since when the webhook enforces a policy whose objects are being
        deleted."""
        self._refused: dict[_Name, tuple[Generated, float, GeneratedStatus]] = {}
        self._counts: Mapping[str, int] = {}
        self.status_version = 0
        """Grows with each change of the statuses."""

    def status_of(self, policy: Source) -> GeneratedStatus | None:
        """Return the status for a policy, None to leave the written one unchanged."""
        return self._statuses.get(_name_of(policy))

    def counts(self) -> Mapping[str, int]:
        """Return the number of policies that the API server enforces, by kind."""
        return self._counts

    def reconcile(self, _key: str) -> Result:
        """Bring the objects of all policies to their desired state.

        Raises: DependencyError, LeaseLost.
        """
        if not self._election.holds():
            return Result(after_s=_FOLLOW_S)
        term, registered = self._inputs.registered()
        directory = self._inputs.directory()
        if term != self._election.terms_held or not directory.resources:
            return Result(after_s=_FOLLOW_S)
        if term != self._term:
            self._forget(term)
        sources = [one for one in registered if isinstance(one, Source)]
        sources = [one for one in sources if one.kind in SOURCES]
        return self._converge(sources, directory, pairs_of(directory))

    def _forget(self, term: int) -> None:
        """Start over, because another replica may have held the lease."""
        self._term = term
        self._objects.forget()
        self._read_s = None
        self._statuses, self._written_s, self._refused = {}, {}, {}
        self._replaced_s = {}

    def _converge(
        self, sources: list[Source], directory: Directory, pairs: Mapping[str, Pair]
    ) -> Result:
        self._exceptions.read(self._inputs.exceptions())
        self._plans.keep(sources)
        now = self._clock.now()
        plans = [
            (one, self._plans.of(one, self._exceptions.of(one, now), directory, pairs))
            for one in sources
        ]
        wanted = any(plan.kind for _, plan in plans)
        self._read(pairs, wanted=wanted)
        self._drop({_name_of(one) for one in sources})
        try:
            waits, failure = self._each(plans, pairs)
        finally:
            self._submit_statuses()
        if failure is not None:
            raise failure
        if waits:
            return Result(retry=True)
        return Result(after_s=_RESYNC_S) if wanted or len(self._objects) else Result()

    def _each(
        self, plans: list[tuple[Source, Generated]], pairs: Mapping[str, Pair]
    ) -> tuple[bool, DependencyError | None]:
        """Reconcile each policy; return whether some must wait, and the first failure.

        A policy that fails does not block the others. Raises: LeaseLost.
        """
        left, failures = GENERATED_POLICY_WRITES_MAX, GENERATED_POLICY_FAILURES_MAX
        waits, failure = False, None
        for policy, plan in sorted(plans, key=self._has_failed):
            if left == 0 or failures == 0:
                return True, failure
            name = _name_of(policy)
            try:
                left -= self._one(policy, plan, pairs)
                self._failed.discard(name)
            except _Waits:
                waits = True
                self._failed.discard(name)
            except DependencyError as error:
                failure = failure or error
                failures -= 1
                self._failed.add(name)
        return waits, failure

    def _has_failed(self, one: tuple[Source, Generated]) -> bool:
        return _name_of(one[0]) in self._failed

    def _submit_statuses(self) -> None:
        """Trigger a write of the statuses if they changed."""
        if self._statuses == self._submitted:
            return
        self._submitted = dict(self._statuses)
        self._count()
        self.status_version += 1
        self._inputs.on_status_change()

    def _count(self) -> None:
        found = dict.fromkeys((VALIDATING, MUTATING), 0)
        for (kind, _), status in self._statuses.items():
            found[SOURCES[kind][1]] += status.generated
        self._counts = found

    def _read(self, pairs: Mapping[str, Pair], *, wanted: bool) -> None:
        now_s = self._clock.monotonic_s()
        is_due = self._read_s is None or (
            now_s - self._read_s >= _RESYNC_S and (wanted or len(self._objects))
        )
        if not is_due:
            return
        try:
            self._objects.read(pairs.values())
        except KubeRefused as error:
            # Without permission, no object can be ours; each write fails with its own
            # message.
            _log.info("cannot read generated admission policies: %s", error.message)
        self._read_s = now_s

    def _drop(self, names: set[_Name]) -> None:
        kept: tuple[dict[_Name, Any], ...] = (
            *(self._statuses, self._written_s, self._refused, self._replaced_s),
        )
        for known in kept:
            for name in known.keys() - names:
                del known[name]
        self._failed &= names

    def _one(self, policy: Source, plan: Generated, pairs: Mapping[str, Pair]) -> bool:
        """Reconcile one policy; return whether something may have been written.

        Raises: _Waits, DependencyError, LeaseLost.
        """
        name = _name_of(policy)
        refused = self._refused.get(name)
        if refused is not None and refused[0] is plan:
            if self._clock.monotonic_s() - refused[1] < _AGAIN_S:
                self._statuses[name] = refused[2]
                return self._remove(policy, pairs)
            del self._refused[name]
        if not plan.kind:
            self._statuses[name] = GeneratedStatus(
                generated=False, message=plan.message
            )
            return self._remove(policy, pairs)
        self._replaced_s.pop(name, None)
        self._miss(policy, plan, pairs[plan.kind])
        try:
            is_written = self._write(plan, pairs[plan.kind])
        except (KubeRefused, Foreign) as error:
            status = GeneratedStatus(generated=False, message=_reason_of(plan, error))
            self._refused[name] = plan, self._clock.monotonic_s(), status
            self._statuses[name] = status
            return self._remove(policy, pairs)
        except KubeConflict:
            self._read_s = None
            raise _Waits from None
        self._loaded(policy, plan)
        return is_written

    def _miss(self, policy: Source, plan: Generated, pair: Pair) -> None:
        """Let the webhook enforce a policy if one of its generated objects is gone."""
        known = self._statuses.get(_name_of(policy))
        is_enforced = is_generated(policy.status) if known is None else known.generated
        if is_enforced and not self._objects.has_both(pair, names_of(policy)[1]):
            status = GeneratedStatus(False, _REPLACED.format(plan.kind))
            self._statuses[_name_of(policy)] = status
            self._written_s.pop(_name_of(policy), None)

    def _write(self, plan: Generated, pair: Pair) -> bool:
        parts = (
            (pair.policy, plan.kind, plan.policy),
            (pair.binding, f"{plan.kind}{BINDING}", plan.binding),
        )
        written = False
        for resource, kind, wanted in parts:
            try:
                written |= self._objects.write(resource, kind, wanted)
            except KubeRefused as error:
                if error.code != "kube.forbidden":
                    raise
                shown = _PLURALS_SHOWN[resource.plural]
                raise KubeRefused(error.code, _FORBIDDEN.format(shown)) from error
        return written

    def _loaded(self, policy: Source, plan: Generated) -> None:
        """Set the status to generated once the API server has loaded the objects."""
        name, now_s = _name_of(policy), self._clock.monotonic_s()
        known = self._statuses.get(name)
        if is_generated(policy.status) and (known is None or known.generated):
            self._statuses[name] = GeneratedStatus(generated=True)
            return
        first = self._written_s.get(name)
        if first is None or first[0] is not plan:
            first = self._written_s[name] = plan, now_s
        if now_s - first[1] < _LOADED_S:
            raise _Waits
        if known is None or not known.generated:
            self._statuses[name] = GeneratedStatus(generated=True)
            self._report(policy, plan)

    def _remove(self, policy: Source, pairs: Mapping[str, Pair]) -> bool:
        """Delete the objects once the webhook enforces the policy again.

        K8S: API servers load a changed webhook configuration with a delay, too.
        """
        kind, name = names_of(policy)
        self._written_s.pop(_name_of(policy), None)
        since = self._replaced_s.pop(_name_of(policy), None)
        pair = pairs.get(kind)
        if pair is None or not self._objects.has(pair, name):
            return False
        if is_generated(policy.status) or not self._inputs.in_force(policy):
            raise _Waits
        now_s = self._clock.monotonic_s()
        if since is None or since[0] is not policy:
            since = policy, now_s
        self._replaced_s[_name_of(policy)] = since
        if now_s - since[1] < _LOADED_S:
            raise _Waits
        try:
            self._objects.delete(pair, name)
        except KubeRefused as error:
            text = "cannot delete %s %s, which stays in force: %s"
            _log.warning(text, kind, name, error.message)
        except KubeConflict:
            self._read_s = None
            raise _Waits from None
        return True

    def _report(self, policy: Source, plan: Generated) -> None:
        """Submit the Events of a generated policy.

        KYVERNO: only ValidatingAdmissionPolicies have Events.
        """
        if plan.kind != VALIDATING:
            return
        name = policy.metadata.name
        regarding = Reference(
            policy.api_version, policy.kind, name, uid=policy.metadata.uid
        )
        for kind, word, made in (
            (VALIDATING, "", plan.policy),
            (f"{VALIDATING}{BINDING}", "binding ", plan.binding),
        ):
            assert made is not None
            generated = made["metadata"]["name"]
            self._inputs.submit(
                EventInfo(
                    regarding=regarding,
                    related=Reference(f"{GROUP}/v1", kind, generated),
                    reason="PolicyApplied",
                    action="Resource Generated",
                    note=_EVENT.format(word, generated, name),
                    controller="kyverno-generate",
                )
            )


def _name_of(policy: Source) -> _Name:
    return policy.kind, policy.metadata.name


def _reason_of(plan: Generated, error: KubeRefused | Foreign) -> str:
    assert plan.policy is not None
    if isinstance(error, Foreign):
        name = plan.policy["metadata"]["name"]
        text = f"{name} or its binding exists, and Kyverno did not generate it."
        return f"skip generating {plan.kind}: {text}"
    if error.code == "kube.forbidden":
        return error.message
    return f"skip generating {plan.kind}: {error.message}"
