"""Write into each policy's status whether it is in force, and its autogen rules.

Room: controllers. Takes: the cluster's policies, what this pod's workers serve.
Gives: status conditions, rulecount, autogen rules. Next: the API server.
May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 1.2 (status), 3.8.

Ready means that the webhooks are registered and that every worker of this replica
serves the policy, as do the other replicas that report their versions
(controllers/replicas.py). A policy whose status the API server rejects does not delay
other policies. Many changed policies are written in several passes, so that other
controllers can run in between.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.generated_status import (
    GeneratedStatus,
    GeneratedStatuses,
    NoGeneratedStatuses,
    with_generated,
)
from kyverno_mp.controllers.scan_permissions import MissingPermissions
from kyverno_mp.controllers.stored_rule import as_stored
from kyverno_mp.controllers.unproved_status import without_outdated
from kyverno_mp.errors import KubeConflict, KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.resource import Key
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import KIND_OF


class InForce(NamedTuple):
    """Whether a policy at a ``generation`` is ready, and if not, why."""

    ready: bool
    message: str = ""
    generation: int = 0


Reported = AnyPolicy | AnyServedPolicy
PolicyName = tuple[str, str, str]
"""Kind, namespace, name."""
Served = Mapping[PolicyName, InForce]
_RESOURCES: Final = {
    stored.kind: resource_of(stored)
    for row in KIND_OF.values()
    for stored in row.stored
}
_COUNTS: Final = {
    "validate": "validate",
    "generate": "generate",
    "mutate": "mutate",
    "verifyImages": "verifyimages",
}
_AUTOGEN: Final = "autogen-"
_MESSAGE_CHARACTERS_MAX: Final = 1024
_WRITES_MAX: Final = 50
"""Statuses written in one pass, which takes about a tenth of a second."""
_log = logging.getLogger(__name__)


class Pass(NamedTuple):
    """The outcome of one pass over the policies.

    ``known``: whether the workers serve every policy and every status was accepted.
    ``ended``: whether the pass reached the last policy.
    """

    known: bool
    ended: bool = True


def _nobody_lags(_policy: Reported) -> Sequence[str]:
    return ()


def _nothing_missing(_policy: AnyServedPolicy) -> Sequence[str]:
    return ()


class PolicyStatuses:
    """Writes the statuses; remembers them, so that each policy is read only once."""

    def __init__(
        self,
        objects: Objects,
        missing: MissingPermissions = _nothing_missing,
        generated: GeneratedStatuses | None = None,
    ) -> None:
        """``missing`` returns the permissions that scans lack.

        ``generated`` provides the statuses of generated admission policies.
        """
        self._objects = objects
        self._missing = missing
        self._generated = generated or NoGeneratedStatuses()
        self._written: dict[
            PolicyName, tuple[Reported, bool, GeneratedStatus | None]
        ] = {}
        self._refused: set[PolicyName] = set()
        """Policies whose status was rejected since the cycle began."""

    @property
    def status_version(self) -> int:
        """A number that grows when the statuses of generated policies change."""
        return self._generated.status_version

    def forget(self) -> None:
        """Check every policy again, after another replica held the lease."""
        self._written.clear()

    def write(
        self,
        policies: Iterable[Reported],
        served: Served,
        now: datetime,
        lagging: Callable[[Reported], Sequence[str]] = _nobody_lags,
    ) -> Pass:
        """Write changed statuses, at most 50 of them.

        ``lagging`` returns the other replicas that do not enforce the policy yet. The
        policy becomes Ready only after they do.

        Raises: DependencyError, LeaseLost.
        """
        known, left = True, _WRITES_MAX
        policies = list(policies)
        for name in self._written.keys() - {name_of(one) for one in policies}:
            del self._written[name]
        for policy in policies:
            name = name_of(policy)
            found = served.get(name)
            # An outdated version gets no status, because clients would trust its Ready.
            if found is None or found.generation < policy.metadata.generation:
                known = False
                continue
            ready, message = found.ready, found.message
            generated = self._generated.status_of(policy)
            if self._written.get(name) == (policy, ready, generated):
                continue
            if ready and lagging(policy):
                known = False
                continue
            if name in self._refused:
                known = False
                continue
            if left == 0:
                return Pass(known, ended=False)
            left -= 1
            if self._try_one(policy, now, ready=ready, message=message):
                self._written[name] = (policy, ready, generated)
            else:
                self._refused.add(name)
                known = False
        self._refused.clear()
        return Pass(known)

    def _try_one(
        self, policy: Reported, now: datetime, *, ready: bool, message: str
    ) -> bool:
        """Write one status; return False if the API server rejects this one object."""
        try:
            self._write_one(policy, now, ready=ready, message=message)
        except (KubeRefused, KubeConflict) as error:
            if error.code == "kube.forbidden":
                # Every other policy would fail with the same error.
                raise
            _log.warning("status of policy %s: %s", name_of(policy), error.message)
            return False
        return True

    def _write_one(
        self, policy: Reported, now: datetime, *, ready: bool, message: str
    ) -> None:
        cel = None if isinstance(policy, AnyPolicy) else policy
        missing = () if cel is None else self._missing(cel)
        generated = self._generated.status_of(policy)

        def edit(raw: Json) -> Json | None:
            before = raw.get("status") or {}
            after = (
                status_of(policy, before, now, ready=ready, message=message)
                if isinstance(policy, AnyPolicy)
                else cel_status_of(
                    policy, before, now, ready=ready, message=message, missing=missing
                )
            )
            after = with_generated(after, policy.kind, generated)
            return None if after == before else {**raw, "status": after}

        resource = _RESOURCES[policy.kind]
        self._objects.change(resource, _key_of(policy), edit, "status")


def status_of(
    policy: AnyPolicy, before: Json, now: datetime, *, ready: bool, message: str
) -> Json:
    """Return the whole status; keep the fields of other writers."""
    rules = expand(policy)
    status: Json = {
        **before,
        "autogen": {},
        "conditions": without_outdated(
            _conditions(before, now, ready=ready, message=message),
            policy.metadata.generation,
        ),
        "rulecount": _count(rules),
        "validatingadmissionpolicy": before.get("validatingadmissionpolicy")
        or {"generated": False, "message": ""},
    }
    status.pop("ready", None)
    generated = [as_stored(rule) for rule in rules if rule.name.startswith(_AUTOGEN)]
    if generated:
        status["autogen"] = {"rules": generated}
    return status


def _conditions(
    before: Json, now: datetime, *, ready: bool, message: str
) -> list[Json]:
    others: list[Json] = []
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = "Ready" if ready else message[:_MESSAGE_CHARACTERS_MAX] or "Not Ready"
    value = "True" if ready else "False"
    for condition in before.get("conditions") or ():
        if condition.get("type") != "Ready":
            others.append(condition)
        elif condition.get("status") == value:
            since = condition.get("lastTransitionTime") or since
    return [
        *others,
        {
            "type": "Ready",
            "status": value,
            "reason": "Succeeded" if ready else "Failed",
            "message": text,
            "lastTransitionTime": since,
        },
    ]


def _count(rules: Iterable[Rule]) -> Json:
    counts = dict.fromkeys(_COUNTS.values(), 0)
    for rule in rules:
        if rule.name.startswith(_AUTOGEN):
            continue
        for kind in rule.types():
            counts[_COUNTS[kind]] += 1
    return counts


def name_of(policy: Reported) -> PolicyName:
    """Return the key of a policy in Served."""
    return (policy.kind, *_key_of(policy))


def _key_of(policy: Reported) -> Key:
    is_namespaced = _RESOURCES[policy.kind].namespaced
    namespace = policy.metadata.namespace if is_namespaced else ""
    return namespace, policy.metadata.name
