"""Convert the metadata of a policy, which is common to all policy kinds.

Room: compiler. Takes: kind and metadata of a decoded policy. Gives: PolicyIR, to which
each kind adds its own fields. Next: build, cleanup, admission_policy.
Source: docs/behaviour/controllers 6.5 (category, severity, scored);
docs/behaviour/engine 0.4.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.ir.rules import BudgetIR, PolicyIR, RolloutIR
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.gradual import rollout_of

_SEVERITIES: Final = frozenset({"critical", "high", "medium", "low", "info"})
_SECOND_NS: Final = 10**9


def describe(kind: str, metadata: ObjectMeta, namespace: str = "") -> PolicyIR:
    """Return the policy's record; missing metadata fields have defaults."""
    annotations = metadata.annotations
    severity = annotations.get("policies.kyverno.io/severity", "")
    return PolicyIR(
        kind=kind,
        name=metadata.name,
        namespace=namespace,
        scored=annotations.get("policies.kyverno.io/scored") != "false",
        category=annotations.get("policies.kyverno.io/category", ""),
        severity=severity if severity in _SEVERITIES else "",
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        metadata_generation=metadata.generation,
        labels=tuple(sorted(metadata.labels.items())),
        rollout=build_rollout(annotations),
    )


def build_rollout(annotations: Mapping[str, str]) -> RolloutIR | None:
    """Return how a policy is put into force; None: for all subjects at once."""
    rollout = rollout_of(annotations)
    if rollout is None:
        return None
    # A changed budget does not begin the schedule anew.
    plan = msgspec.json.encode(rollout._replace(budget=None))
    hashed = hashlib.blake2b(plan, digest_size=8)
    budget = rollout.budget
    return RolloutIR(
        hashed.hexdigest(),
        rollout.steps,
        rollout.step_ns // _SECOND_NS,
        rollout.by_owner,
        rollout.rings,
        None
        if budget is None
        else BudgetIR(
            budget.denials,
            budget.window_ns // _SECOND_NS,
            budget.per_namespace,
            budget.per_user,
        ),
    )
