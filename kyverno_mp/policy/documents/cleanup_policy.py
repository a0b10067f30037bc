"""Declare CleanupPolicy and ClusterCleanupPolicy.

Room: policy. Takes: nothing. Gives: both kinds. Next: policy/reading/decode.py, which
creates them; the clean-up pool, which reads them.
Source: docs/behaviour/controllers 1.3, 7.
"""

from typing import Final, Literal

from kyverno_mp.policy.fields.conditions import AnyAllConditionsV2
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.match import MatchFilters
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json

DRY_RUN: Final = "kyverno-mp.io/dry-run"
BUDGET: Final = "kyverno-mp.io/deletion-budget"
"""Annotations of both kinds, which upstream does not have."""
DRY_RUNS: Final = ("", "true", "false")
DRY_RUN_EXPECTED: Final = 'expected "true" or "false"'


class CleanupSpec(Fields, frozen=True, kw_only=True):
    """``spec``; ``schedule`` is a cron expression."""

    context: tuple[ContextEntry, ...] = ()
    match: MatchFilters
    exclude: MatchFilters | None = None
    schedule: str
    conditions: AnyAllConditionsV2 | None = None
    deletion_propagation_policy: (
        Literal["Foreground", "Background", "Orphan"] | None
    ) = None


class CleanupPolicy(Fields, frozen=True, kw_only=True):
    """A schedule and conditions for deleting objects in one namespace."""

    api_version: str
    kind: Literal["CleanupPolicy"]
    metadata: ObjectMeta
    spec: CleanupSpec
    status: Json = None


class ClusterCleanupPolicy(Fields, frozen=True, kw_only=True):
    """A schedule and conditions for deleting objects in the whole cluster."""

    api_version: str
    kind: Literal["ClusterCleanupPolicy"]
    metadata: ObjectMeta
    spec: CleanupSpec
    status: Json = None


AnyCleanupPolicy = CleanupPolicy | ClusterCleanupPolicy
