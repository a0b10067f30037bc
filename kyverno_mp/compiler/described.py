"""Convert the metadata of a policy, which is common to all policy kinds.

Room: compiler. Takes: kind and metadata of a decoded policy. Gives: PolicyIR, to which
each kind adds its own fields. Next: build, cleanup, admission_policy.
May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 6.5 (category, severity, scored);
docs/behaviour/engine 0.4.
"""

from typing import Final

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.policy.fields.meta import ObjectMeta

_SEVERITIES: Final = frozenset({"critical", "high", "medium", "low", "info"})


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
    )
