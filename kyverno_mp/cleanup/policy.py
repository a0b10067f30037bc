"""Read a stored clean-up policy of any kind: its schedule and its run options.

Room: cleanup. Takes: a CleanupPolicy or DeletingPolicy as the API server stores it.
Gives: StoredPolicy, which the informer keeps, and CompiledPolicy, created once per
version. Next: cleanup/runner.py; cleanup/deleting.py compiles DeletingPolicies.
Source: docs/behaviour/controllers 7 (CleanupPolicy reconcile, Cron).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.cleanup.plan import CleanupPlan, Plan
from kyverno_mp.compiler.cleanup import compile_cleanup
from kyverno_mp.errors import ExpressionFailed, PolicyInvalid, Where
from kyverno_mp.kube.policy_resources import resources_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.policy.documents.cleanup_policy import (
    BUDGET,
    DRY_RUN,
    DRY_RUN_EXPECTED,
    DRY_RUNS,
    AnyCleanupPolicy,
)
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.program.cleanup import LinkedCleanup
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.budget import Budget, parse_budget
from kyverno_mp.values.cron import Schedule, parse_schedule
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time
from kyverno_mp.values.kubernetes.policy_kinds import CEL_GROUP, CLEANUP_POLICY, IN_CEL

CONDITION: Final = "CleanedUp"
RUNNING: Final = "Running"
CLEANERS: Final = resources_of(CLEANUP_POLICY)
"""The resources of the cluster's policies and of the namespaced ones."""
CEL_CLEANERS: Final = resources_of(IN_CEL[CLEANUP_POLICY.name])
_RESOURCES: Final = {each.kind: each for each in (*CLEANERS, *CEL_CLEANERS)}


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    annotations: dict[str, str] | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    reason: str = ""
    observed_generation: int = 0


class _ConditionStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Status(msgspec.Struct, rename="camel"):
    last_execution_time: str | None = None
    conditions: list[_Condition] | None = None
    condition_status: _ConditionStatus | None = None


class _Policy(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None
    spec: msgspec.Raw = msgspec.Raw(b"{}")


_POLICY: Final = msgspec.json.Decoder(_Policy)


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a policy that its runs depend on. Times: Unix seconds."""

    kind: str
    name: str
    namespace: str
    uid: str
    metadata_generation: int
    created_s: int
    last_s: int | None
    is_running: bool
    """A run of this generation has begun but not ended: its lease holder died or is
    busy."""
    annotations: tuple[tuple[str, str], ...]
    spec: bytes

    @property
    def key(self) -> Key:
        """Namespace and name; namespace "" = a cluster policy."""
        return self.namespace, self.name

    @property
    def resource(self) -> Resource:
        """The resource of the policy's kind."""
        return _RESOURCES[self.kind]

    @property
    def is_deleting(self) -> bool:
        """Whether it is a DeletingPolicy or NamespacedDeletingPolicy."""
        return is_deleting(self.resource)

    @property
    def shown(self) -> str:
        """The policy's name for messages: ``name`` or ``namespace/name``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def version(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        """The values that a run depends on; a change ends the run."""
        return self.uid, self.metadata_generation, self.annotations

    @property
    def labels(self) -> tuple[str, str, str]:
        """Values of the metric labels policy_type, policy_namespace, policy_name."""
        return self.kind, self.namespace, self.name


def stored_policy(resource: Resource, raw: bytes | msgspec.Raw) -> StoredPolicy | None:
    """Read a policy; None while it is being deleted. Raises: msgspec.DecodeError."""
    policy = _POLICY.decode(raw)
    metadata, status = policy.metadata, policy.status or _Status()
    of_cel = status.condition_status or _ConditionStatus()
    if metadata.deletion_timestamp:
        return None
    annotations = metadata.annotations or {}
    options = tuple((name, annotations.get(name, "")) for name in (DRY_RUN, BUDGET))
    last = status.last_execution_time
    return StoredPolicy(
        kind=resource.kind,
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        metadata_generation=metadata.generation,
        created_s=seconds_of(metadata.creation_timestamp) or 0,
        last_s=seconds_of(last) if last else None,
        is_running=any(
            (condition.type, condition.reason, condition.observed_generation)
            == (CONDITION, RUNNING, metadata.generation)
            for condition in (*(status.conditions or ()), *(of_cel.conditions or ()))
        ),
        annotations=options,
        spec=bytes(policy.spec),
    )


def is_deleting(resource: Resource) -> bool:
    """Return whether it is the resource of DeletingPolicies or namespaced ones."""
    return resource.group == CEL_GROUP


def seconds_of(time: str) -> int | None:
    """Return an RFC 3339 time in Unix seconds, or None if the string is invalid."""
    try:
        return parse_time(RFC3339, time).seconds
    except ExpressionFailed:
        return None


class RunOptions(msgspec.Struct, frozen=True):
    """Options of a policy's runs; its annotations take precedence over the settings."""

    is_dry_run: bool
    budget: Budget | None


class CompiledPolicy(msgspec.Struct, frozen=True):
    """A compiled policy with its schedule and options."""

    stored: StoredPolicy
    plan: Plan
    schedule: Schedule
    options: RunOptions
    exceptions: bytes = b""
    """Digest of the PolicyExceptions used in its compilation."""

    def due_s(self, stored: StoredPolicy) -> int | None:
        """Return the time of the next run in Unix seconds, None for never.

        Several missed runs count as one, due after the last run or the creation.
        """
        after_s = stored.created_s if stored.last_s is None else stored.last_s
        return self.schedule.next_s(after_s)


def compiled_policy(stored: StoredPolicy, settings: Settings) -> CompiledPolicy:
    """Compile a policy. Raises: PolicyInvalid with the reason."""
    document = {
        "apiVersion": stored.resource.api_version,
        "kind": stored.kind,
        "metadata": {"name": stored.name, "namespace": stored.namespace},
        "spec": msgspec.json.decode(stored.spec),
    }
    examined = examine(document)
    policy = examined.document
    if not isinstance(policy, AnyCleanupPolicy) or examined.problems:
        raise _invalid(stored, "; ".join(map(str, examined.problems)))
    schedule, options = schedule_and_options(stored, policy.spec.schedule, settings)
    plan = CleanupPlan(LinkedCleanup(compile_cleanup(policy)))
    return CompiledPolicy(stored, plan, schedule, options)


def schedule_and_options(
    stored: StoredPolicy, schedule: str, settings: Settings
) -> tuple[Schedule, RunOptions]:
    """Parse the schedule and the annotations. Raises: PolicyInvalid."""
    try:
        options = _options_of(dict(stored.annotations), settings)
        return parse_schedule(schedule), options
    except ExpressionFailed as error:
        raise _invalid(stored, error.message) from error


def _options_of(annotations: Mapping[str, str], settings: Settings) -> RunOptions:
    """Read the annotations. An invalid budget must not count as "no budget"."""
    try:
        budget = parse_budget(annotations[BUDGET])
    except ExpressionFailed as error:
        reason = f"annotation {BUDGET}: {error.message}"
        raise ExpressionFailed(error.code, reason) from error
    dry_run = annotations[DRY_RUN]
    if dry_run not in DRY_RUNS:
        raise ExpressionFailed(
            "cleanup.dry_run", f"annotation {DRY_RUN}: {DRY_RUN_EXPECTED}"
        )
    return RunOptions(
        is_dry_run=settings.cleanup_dry_run or dry_run == "true",
        budget=budget or parse_budget(settings.cleanup_deletion_budget),
    )


def _invalid(stored: StoredPolicy, reason: str) -> PolicyInvalid:
    return PolicyInvalid("cleanup.policy", reason, Where(policy=stored.shown))
