"""The health of a policy as Argo CD computes it.

Takes: a policy with its status. Gives: ``Healthy``, ``Degraded`` or ``Progressing``.
A policy that is in force and not Healthy keeps each Application with it from becoming
Healthy, and sync waves wait for it.
Source: Argo CD resource_customizations/{kyverno.io,policies.kyverno.io}/*/health.lua.
"""

from typing import Any

Json = Any


def health(policy: Json) -> str:
    """Return the health of a ClusterPolicy, a Policy, or a policy in CEL."""
    if policy["metadata"].get("deletionTimestamp"):
        return "Progressing"
    status = policy.get("status") or {}
    if policy["apiVersion"].startswith("policies.kyverno.io/"):
        return _in_cel(status.get("conditionStatus"), policy["metadata"])
    ready = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    if policy["kind"] == "Policy":
        exact = ("True", "Succeeded", "Ready")
        found = [(one["status"], one["reason"], one["message"]) for one in ready]
        return "Healthy" if exact in found else "Progressing"
    if not ready:
        return "Progressing"
    return "Healthy" if ready[0]["status"] == "True" else "Degraded"


def _in_cel(conditions: Json, metadata: Json) -> str:
    if conditions is None:
        return "Progressing"
    generation = metadata.get("generation", 0)
    if any(
        one.get("observedGeneration", generation) < generation
        for one in conditions.get("conditions") or ()
    ):
        return "Progressing"
    return "Healthy" if conditions.get("ready") is True else "Degraded"
