"""Compute the match conditions of webhooks for policies of policies.kyverno.io.

Room: controllers. Takes: a decoded policy. Gives: conditions to register. Next:
controllers/webhook_config/cel.py.
Source: docs/behaviour/cel 9; Kyverno pkg/controllers/webhook/validating.go at v1.18.2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.compiler.webhook_conditions import are_accepted_everywhere
from kyverno_mp.limits import MATCH_CONDITIONS_MAX
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import is_label_key

_KINDS_OF_COPIES: Final = {
    "cronjobs": {"cronjobs": ("batch/v1", "CronJob")},
    "defaults": {
        "daemonsets": ("apps/v1", "DaemonSet"),
        "deployments": ("apps/v1", "Deployment"),
        "jobs": ("batch/v1", "Job"),
        "replicasets": ("apps/v1", "ReplicaSet"),
        "statefulsets": ("apps/v1", "StatefulSet"),
    },
}
"""Not of custom workloads: their conditions are about the Pods of their templates."""
_PODS: Final = {"pods": ("v1", "Pod")}


def conditions_of(policy: AnyServedPolicy) -> list[Json]:
    """Return the conditions to register, none if the API server would reject one.

    If a policy has autogen copies, each condition is limited to the kinds it is for.
    """
    row = row_of(policy.kind)
    if row.synchronizes is not None and row.synchronizes(policy):
        return []  # Requests that do not meet them can affect generated objects.
    copies = list(row.copies_of(policy))
    if not copies:
        found = [
            (match_condition.name, match_condition.expression)
            for match_condition in policy.spec.match_conditions
        ]
    else:
        found = list(_of_kinds("autogen", _PODS, policy.spec.match_conditions))
        for name, spec in copies:
            constraints = spec.match_constraints
            rules = () if constraints is None else constraints.resource_rules
            covered = {resource for rule in rules for resource in rule.resources}
            kinds = {
                resource: kind
                for resource, kind in _KINDS_OF_COPIES.get(name, {}).items()
                if resource in covered
            }
            found += _of_kinds(f"autogen-{name}", kinds, spec.match_conditions)
    kept = found if _are_registrable(found) else []
    return [{"name": name, "expression": text} for name, text in kept]


def _of_kinds(
    prefix: str,
    kinds: Mapping[str, tuple[str, str]],
    conditions: Iterable[NamedExpression],
) -> Iterator[tuple[str, str]]:
    """Yield each condition in a form that is true for every other kind."""
    is_one = " || ".join(
        sorted(
            f"(object.apiVersion == '{version}' && object.kind =='{kind}')"
            for version, kind in kinds.values()
        )
    )
    for condition in conditions if kinds else ():
        yield f"{prefix}-{condition.name}", f"!({is_one}) || ({condition.expression})"


def _are_registrable(conditions: Sequence[tuple[str, str]]) -> bool:
    names = [name for name, _ in conditions]
    if len(names) >= MATCH_CONDITIONS_MAX or len(set(names)) < len(names):
        return False
    if not all(map(is_label_key, names)):
        return False
    return are_accepted_everywhere(text for _, text in conditions)
