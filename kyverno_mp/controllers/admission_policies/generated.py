"""Define the native objects that the API server enforces in place of a policy.

Room: controllers. Takes: a policy, specs as JSON. Gives: Generated, the resources of
the kinds.
Next: controllers/admission_policies/objects.py.
Source: docs/behaviour/controllers 13; Kyverno pkg/admissionpolicy/builder.go (v1.18.2).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kyverno_mp.controllers.admission_policies.constraints import Condition
from kyverno_mp.controllers.webhook_config.options import MANAGER
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.values.jsonvalue import Json

LABEL: Final = "app.kubernetes.io/managed-by"
_UNREPORTED: Final = "reports.kyverno.io/disabled"
VALIDATING: Final = "ValidatingAdmissionPolicy"
MUTATING: Final = "MutatingAdmissionPolicy"
BINDING: Final = "Binding"
PLURALS: Final = {
    VALIDATING: "validatingadmissionpolicies",
    MUTATING: "mutatingadmissionpolicies",
    f"{VALIDATING}{BINDING}": "validatingadmissionpolicybindings",
    f"{MUTATING}{BINDING}": "mutatingadmissionpolicybindings",
}
Source = AnyPolicy | AnyServedPolicy
"""A policy; ``SOURCES`` (plans.py) names the kinds that are converted."""


class Generated(NamedTuple):
    """A native policy and its binding, without ``kind`` and ``apiVersion``.

    If nothing is generated, ``message`` is the reason.
    """

    kind: str = ""
    policy: Json | None = None
    binding: Json | None = None
    message: str = ""


def object_of(source: Source, name: str, spec: Json) -> Json:
    """Return a native admission policy."""
    raw = _owned(source, name, spec)
    if _UNREPORTED in source.metadata.labels:
        raw["metadata"]["labels"][_UNREPORTED] = "true"
    return raw


def binding_of(source: Source, name: str, spec: Json) -> Json:
    """Return the binding of the policy ``name``."""
    return _owned(source, f"{name}-binding", {"policyName": name, **spec})


def with_unique_names(conditions: Iterable[Condition]) -> list[Json]:
    """Return conditions as JSON with unique names, as the API server requires."""
    taken: set[str] = set()
    unique_names = []
    for condition in conditions:
        name, count = condition.name, 1
        while name in taken:
            count += 1
            name = f"{condition.name}-{count}"
        taken.add(name)
        unique_names.append(Condition(name, condition.expression).raw())
    return unique_names


def _owned(source: Source, name: str, spec: Json) -> Json:
    return {
        "metadata": {
            "name": name,
            "labels": {LABEL: MANAGER},
            "ownerReferences": [
                {
                    "apiVersion": source.api_version,
                    "kind": source.kind,
                    "name": source.metadata.name,
                    "uid": source.metadata.uid,
                }
            ],
        },
        "spec": spec,
    }
