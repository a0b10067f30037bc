"""Build the ValidatingAdmissionPolicy and the binding of a ClusterPolicy.

Room: controllers. Takes: a ClusterPolicy, its exceptions, a Directory.
Gives: Generated. Next: controllers/admission_policies/plans.py.
Source: docs/behaviour/controllers 13; Kyverno pkg/admissionpolicy/builder.go (v1.18.2).
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.compiler.cel_kinds.translatable import (
    why_not,
    why_not_asked,
    why_not_equal,
    why_not_with,
)
from kyverno_mp.controllers.admission_policies.constraints import (
    Condition,
    NotTranslated,
    constraints_of,
)
from kyverno_mp.controllers.admission_policies.generated import (
    VALIDATING,
    Generated,
    binding_of,
    object_of,
    with_unique_names,
)
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.jsonvalue import Json

_ACTIONS: Final = {"Enforce": ["Deny"], "Audit": ["Audit", "Warn"]}


def from_rules(
    policy: ClusterPolicy,
    exceptions: Sequence[PolicyException],
    directory: Directory,
) -> Generated:
    """Return both objects, or the reason why none is generated."""
    message = (
        why_not(policy)
        or why_not_asked(policy.spec.rules[0])
        or why_not_with(exceptions)
        or why_not_equal(policy)
    )
    if message:
        return Generated(message=message)
    try:
        spec = _spec_of(policy, exceptions, directory)
    except NotTranslated as error:
        return Generated(message=str(error))
    (rule,) = policy.spec.rules
    assert rule.validate is not None
    assert rule.validate.cel is not None
    action = rule.validate.failure_action or policy.spec.validation_failure_action
    binding: Json = {"validationActions": _ACTIONS[action.capitalize()]}
    if rule.validate.cel.param_ref is not None:
        binding["paramRef"] = rule.validate.cel.param_ref.raw()
    name = f"cpol-{policy.metadata.name}"
    return Generated(
        VALIDATING,
        object_of(policy, name, spec),
        binding_of(policy, name, binding),
    )


def _spec_of(
    policy: ClusterPolicy, exceptions: Sequence[PolicyException], directory: Directory
) -> Json:
    """Return the spec. Raises: NotTranslated."""
    (rule,) = policy.spec.rules
    assert rule.validate is not None
    cel = rule.validate.cel
    assert cel is not None
    constraints = constraints_of(rule, exceptions, directory)
    given = [
        *(rule.cel_preconditions or ()),
        *(
            policy.spec.webhook_configuration.match_conditions
            if policy.spec.webhook_configuration
            else ()
        ),
    ]
    conditions = [
        *(Condition(one.name, one.expression) for one in given),
        *constraints.conditions,
    ]
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints.raw,
        "matchConditions": with_unique_names(conditions),
        "variables": [variable.raw() for variable in cel.variables],
        "validations": [expression.raw() for expression in cel.expressions],
        "auditAnnotations": [
            audit_annotation.raw() for audit_annotation in cel.audit_annotations
        ],
    }
    if cel.param_kind is not None:
        spec["paramKind"] = cel.param_kind.raw()
    return {name: value for name, value in spec.items() if value}
