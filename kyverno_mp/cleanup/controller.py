"""Reconcile clean-up policies: wait for the next run, claim it, execute it.

Room: cleanup. Takes: keys of policies of one family: CleanupPolicies or
DeletingPolicies. Gives: CleanupController, a Reconciler; Places, which families share.
Next: cleanup/start.py runs it from the work queue. May touch: the API server through
other modules of this room, the clock.
Source: docs/behaviour/controllers 7 (CleanupPolicy reconcile).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.policy import CompiledPolicy, StoredPolicy
from kyverno_mp.cleanup.recorder import RunRecorder
from kyverno_mp.cleanup.runner import Runner
from kyverno_mp.cleanup.status import Claim, End, Statuses
from kyverno_mp.errors import KubeRefused, LeaseLost, PolicyInvalid, StateError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import AUTHOR_RETRY_S, CLEANUP_NAMESPACES_AT_A_TIME
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.telemetry.families import CLEANUP_HALTED, RECONCILED

_RESYNC_S: Final = 300.0
"""The longest pause, in case the wall clock is adjusted."""
_STALE_S: Final = 1.0
_BUSY_S: Final = 2.0


class Policies(Protocol):
    """The stored policies, from the informers' caches."""

    def get(self, key: Key) -> StoredPolicy | None:
        """Return the policy, or None if it does not exist."""

    def newest(self, key: Key) -> StoredPolicy | None:
        """Return the policy, no older than the last failure of the watch.

        Raises: DependencyError.
        """


class PolicyChanged(StateError):
    """The policy was changed or deleted during its run."""


class RunTaken(StateError):
    """Another replica is executing the run, or has completed it."""


@dataclass(frozen=True, slots=True)
class Family:
    """The differences between the controllers of CleanupPolicies and DeletingPolicies.

    ``name``: upstream's name of the controller. ``compile`` raises PolicyInvalid, and
    DependencyError if required data is unknown; ``exceptions`` returns the digest of
    the PolicyExceptions that currently name a policy, and raises DependencyError.
    """

    name: str
    policies: Policies
    compile: Callable[[StoredPolicy], CompiledPolicy]
    exceptions: Callable[[StoredPolicy], bytes] = lambda _stored: b""


class Places:
    """Reserves runs for namespaces.

    The authors of namespaced policies are not trusted: a namespace can have one run at
    a time, and some threads are reserved for cluster policies.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        """Namespaces with a run in progress."""

    def enter(self, namespace: str) -> bool:
        """Reserve a run; return False if the namespace or too many others have one."""
        with self._lock:
            is_full = len(self._busy) >= CLEANUP_NAMESPACES_AT_A_TIME
            if namespace and (namespace in self._busy or is_full):
                return False
            if namespace:
                self._busy.add(namespace)
            return True

    def leave(self, namespace: str) -> None:
        """End the run of a namespace."""
        with self._lock:
            self._busy.discard(namespace)


class CleanupController:
    """Reconciles all policies of a family, several at a time."""

    def __init__(
        self,
        dependencies: CleanupDependencies,
        family: Family,
        runner: Runner,
        places: Places,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._dependencies = dependencies
        self._family = family
        self._policies = family.policies
        self._runner = runner
        self._places = places
        self._is_stopping = is_stopping
        objects = Objects(dependencies.client, self._guard)
        self._statuses = Statuses(objects, dependencies.clock.now)
        self._lock = threading.Lock()
        self._compiled: dict[Key, CompiledPolicy] = {}
        self._reported: dict[Key, object] = {}
        """The version of each policy that was already reported as invalid."""
        self._refused: dict[Key, tuple[object, str]] = {}
        """The versions of due policies whose run cannot be recorded, with the
        reason."""
        self._accepted: dict[Key, tuple[object, ...]] = {}
        """The version and missing permissions that were last written to each status."""

    def reconcile(self, key: str) -> Result:
        """Start or resume the run of one policy if it is due.

        Raises: DependencyError, LeaseLost.
        """
        self._dependencies.metrics.count(RECONCILED, (self._family.name,))
        namespace, _, name = key.rpartition("/")
        stored = self._policies.get((namespace, name))
        if stored is None:
            self._forget((namespace, name))
            return Result()
        self._drop_refusal_of_older(stored)
        try:
            policy = self._compile(stored)
        except PolicyInvalid as error:
            self._refuse(stored, "Invalid", error.message)
            return Result()
        reason = self._dependencies.author_reason(stored.resource, stored.key)
        if reason:
            self._refuse(stored, "AuthorLacksRights", reason)
            return Result(after_s=AUTHOR_RETRY_S)
        due_s = policy.due_s(stored)
        if due_s is None and not stored.is_running:
            schedule = policy.plan.schedule
            message = (
                f"the schedule {schedule!r} matches no time in the next five years"
            )
            self._refuse(stored, "NeverDue", message)
            return Result()
        self._accept(policy)
        left_s = 0.0 if due_s is None else due_s - self._now_s()
        if left_s > 0 and not stored.is_running:
            self._drop_refusal(stored.key)
            return Result(after_s=min(left_s, _RESYNC_S))
        if not self._places.enter(stored.namespace):
            return Result(after_s=_BUSY_S)
        try:
            done = self._run(policy)
        except KubeRefused as error:
            self._report_refused(stored, error)
            raise
        finally:
            self._places.leave(stored.namespace)
        self._drop_refusal(stored.key)
        return done

    def _accept(self, policy: CompiledPolicy) -> None:
        """Write that a policy is scheduled, and list the permissions that it lacks.

        Only CEL policies have this condition. Raises: DependencyError, LeaseLost.
        """
        stored = policy.stored
        if not stored.is_deleting:
            return
        missing = self._runner.missing(policy)
        accepted = (stored.version, *missing)
        with self._lock:
            if self._accepted.get(stored.key) == accepted:
                return
        try:
            self._statuses.accept(stored, missing)
        except KubeRefused as error:
            self._report_refused(stored, error)
            raise
        with self._lock:
            self._accepted[stored.key] = accepted

    def stop(self) -> None:
        """Clear the gauges of the policies, which the next lease holder sets."""
        with self._lock:
            policies = list(self._compiled.values())
        for policy in policies:
            self._dependencies.metrics.hold(CLEANUP_HALTED, policy.stored.labels, 0.0)

    def problems(self) -> list[str]:
        """Return the reasons why due policies cannot run."""
        with self._lock:
            return [message for _, message in self._refused.values()]

    def _report_refused(self, stored: StoredPolicy, error: KubeRefused) -> None:
        """Report once that a run cannot be recorded, because no status can show it."""
        message = f"clean-up policy {stored.shown} cannot run: {error.message}"
        with self._lock:
            refused = self._refused.get(stored.key)
            self._refused[stored.key] = stored.version, message
        if refused is None or refused[1] != message:
            dependencies = self._dependencies
            recorder = RunRecorder(
                stored, "", dependencies.events, dependencies.metrics
            )
            recorder.error(message)
            recorder.count_error("")

    def _drop_refusal(self, key: Key) -> None:
        with self._lock:
            self._refused.pop(key, None)

    def _drop_refusal_of_older(self, stored: StoredPolicy) -> None:
        """Drop an older version's error; the current one may not even be due."""
        with self._lock:
            refused = self._refused.get(stored.key)
            if refused is not None and refused[0] != stored.version:
                del self._refused[stored.key]

    def _run(self, policy: CompiledPolicy) -> Result:
        claim = self._statuses.find_due(policy)
        if claim is None:
            # The cache is stale; the next event of the policy adds its key again.
            return Result(after_s=_STALE_S)
        steps = _Steps(self, policy, claim)
        try:
            end = self._runner.run(policy, claim, steps)
        except RunTaken:
            return Result(after_s=_STALE_S)
        except PolicyChanged as error:
            end = End(is_done=False, reason="PolicyChanged", message=error.message)
        self._statuses.end(policy, end, claim, begun=steps.begun)
        next_s = policy.schedule.next_s(claim.began_s)
        left_s = _RESYNC_S if next_s is None else next_s - self._now_s()
        return Result(after_s=max(_STALE_S, min(left_s, _RESYNC_S)))

    def check(self, policy: CompiledPolicy) -> None:
        """Raise when a run must stop."""
        self._guard()
        stored = self._policies.newest(policy.stored.key)
        if stored is None or stored.version != policy.stored.version:
            raise PolicyChanged(
                "cleanup.policy_changed",
                "the run ended early: the policy was changed or deleted",
            )
        if self._family.exceptions(stored) != policy.exceptions:
            raise PolicyChanged(
                "cleanup.policy_changed",
                "the run ended early: a PolicyException was changed",
            )

    def begin(self, policy: CompiledPolicy, claim: Claim) -> None:
        """Claim a run before its first deletion. Raises: RunTaken, DependencyError."""
        if not self._statuses.begin(policy, claim):
            raise RunTaken("cleanup.run_taken", "another replica executes this run")

    def _guard(self) -> None:
        if self._is_stopping() or not self._dependencies.holds_lease():
            raise LeaseLost("cleanup.lease_lost", "the clean-up lease is not held")

    def _compile(self, stored: StoredPolicy) -> CompiledPolicy:
        with self._lock:
            compiled = self._compiled.get(stored.key)
        if (
            compiled is not None
            and compiled.stored.version == stored.version
            and compiled.exceptions == self._family.exceptions(stored)
        ):
            return compiled
        policy = self._family.compile(stored)
        with self._lock:
            self._compiled[stored.key] = policy
            self._reported.pop(stored.key, None)
        return policy

    def _refuse(self, stored: StoredPolicy, reason: str, message: str) -> None:
        """Report once that a policy cannot run."""
        with self._lock:
            if self._reported.get(stored.key) == stored.version:
                return
            self._accepted.pop(stored.key, None)
        end = End(is_done=False, reason=reason, message=message)
        self._statuses.refuse(stored, end)
        dependencies = self._dependencies
        RunRecorder(stored, "", dependencies.events, dependencies.metrics).error(
            message
        )
        with self._lock:
            self._reported[stored.key] = stored.version

    def _forget(self, key: Key) -> None:
        with self._lock:
            policy = self._compiled.pop(key, None)
            self._reported.pop(key, None)
            self._refused.pop(key, None)
            self._accepted.pop(key, None)
        if policy is not None:
            self._dependencies.metrics.hold(CLEANUP_HALTED, policy.stored.labels, 0.0)

    def _now_s(self) -> float:
        return self._dependencies.clock.now().timestamp()


class _Steps:
    """The checks and records of one run."""

    def __init__(
        self, controller: CleanupController, policy: CompiledPolicy, claim: Claim
    ) -> None:
        self._controller = controller
        self._policy = policy
        self._claim = claim
        self.begun = claim.is_resumed

    def check_continue(self) -> None:
        self._controller.check(self._policy)

    def begin(self) -> None:
        if not self.begun:
            self._controller.begin(self._policy, self._claim)
            self.begun = True


def key_text(key: Key) -> str:
    """Return a policy's key for the work queue."""
    return f"{key[0]}/{key[1]}"
