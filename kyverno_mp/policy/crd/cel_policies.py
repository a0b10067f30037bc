"""Declare the kinds of policies.kyverno.io: policies written in CEL.

Room: policy. Takes: nothing. Gives: their schemas. Next: policy/crd/cel_kinds.py.
Source: docs/behaviour/controllers 1.7; docs/behaviour/v1.19 4 (fields of exceptions,
MutatingPolicies and GeneratingPolicies); k8s.io/api admissionregistration/v1.
"""

from typing import Final

from kyverno_mp.policy.crd.notation import (
    ATOMIC_TEXTS,
    BOOLEAN,
    CONDITION,
    EXPRESSION,
    INT32,
    SELECTOR,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    Fields,
    Schema,
    atomic,
    choice,
    default,
    items,
    named,
    one_of,
    record,
)

_RULES: Final = atomic(
    items(
        atomic(
            record(
                {
                    "apiGroups": ATOMIC_TEXTS,
                    "apiVersions": ATOMIC_TEXTS,
                    "operations": ATOMIC_TEXTS,
                    "resourceNames": ATOMIC_TEXTS,
                    "resources": ATOMIC_TEXTS,
                    "scope": TEXT,
                }
            )
        )
    )
)
_CONSTRAINTS: Final[Fields] = {
    "resourceRules": _RULES,
    "excludeResourceRules": _RULES,
    "namespaceSelector": SELECTOR,
    "objectSelector": SELECTOR,
    "matchPolicy": TEXT,
}


def _switch(*, on: bool) -> Schema:
    return record({"enabled": default(on, BOOLEAN)})


MATCH: Final[Fields] = {
    "matchConstraints": atomic(record(_CONSTRAINTS)),
    "matchConditions": named(EXPRESSION),
    "variables": named(atomic(EXPRESSION)),
}
WEBHOOK: Final[Fields] = {
    "webhookConfiguration": record({"timeoutSeconds": INT32}),
    "failurePolicy": choice("Ignore", "Fail"),
}
EVALUATION: Final[Fields] = {
    "admission": _switch(on=True),
    "background": _switch(on=True),
    "mode": TEXT,
}
POD_CONTROLLERS: Final[Fields] = {
    "podControllers": record({"controllers": TEXTS}),
}
_OPT_IN: Final = record({"enabled": BOOLEAN})
VALIDATIONS: Final = atomic(
    items(
        record(
            {
                "expression*": TEXT,
                "message": TEXT,
                "messageExpression": TEXT,
                "reason": TEXT,
            }
        )
    )
)
_ANNOTATION: Final = record({"key*": TEXT, "valueExpression*": TEXT})
VALIDATION_OUTCOME: Final[Fields] = {
    "validationActions": items(
        choice("Deny", "Audit", "Warn"), **{"x-kubernetes-list-type": "set"}
    ),
    "auditAnnotations": atomic(items(_ANNOTATION)),
}
_CONDITION_STATUS: Final = record(
    {"ready": BOOLEAN, "message": TEXT, "conditions": items(CONDITION)}
)
_TARGETS: Final = items(
    record({"group": TEXT, "version*": TEXT, "kind*": TEXT, "resource*": TEXT})
)


def cel_policy(spec: Schema, *, has_autogen: bool, is_generated: bool) -> Fields:
    """Return the fields of a policy: spec and status."""
    status: dict[str, Schema] = {"conditionStatus": _CONDITION_STATUS}
    if has_autogen:
        config = record({"spec*": spec, "targets*": _TARGETS})
        configs = {"type": "object", "additionalProperties": config}
        status["autogen"] = record({"configs": configs})
    if is_generated:
        status["generated"] = BOOLEAN
    return {"spec*": spec, "status": record(status)}


VALIDATING_POLICY: Final = cel_policy(
    record(
        {
            **MATCH,
            **WEBHOOK,
            **VALIDATION_OUTCOME,
            "validations": VALIDATIONS,
            "evaluation": record(EVALUATION),
            "autogen": record(
                {**POD_CONTROLLERS, "validatingAdmissionPolicy": _OPT_IN}
            ),
        }
    ),
    has_autogen=True,
    is_generated=True,
)

MUTATING_POLICY: Final = cel_policy(
    record(
        {
            **MATCH,
            **WEBHOOK,
            "mutations": atomic(
                items(
                    record(
                        {
                            "patchType*": TEXT,
                            "applyConfiguration": record({"expression": TEXT}),
                            "jsonPatch": record({"expression": TEXT}),
                        }
                    )
                )
            ),
            "targetMatchConstraints": atomic(
                record({**_CONSTRAINTS, "expression": TEXT})
            ),
            "targetMatchConditions": named(EXPRESSION),
            "auditAnnotations": items(_ANNOTATION),
            "reinvocationPolicy": TEXT,
            "evaluation": record(
                {
                    **EVALUATION,
                    "mutateExisting": _switch(on=False),
                    "skipBackgroundRequests": default(True, BOOLEAN),
                    "useServerSideApply": BOOLEAN,
                }
            ),
            "autogen": record({**POD_CONTROLLERS, "mutatingAdmissionPolicy": _OPT_IN}),
        }
    ),
    has_autogen=True,
    is_generated=True,
)

_GENERATION: Final = record(
    {
        "expression": TEXT,
        "template": record(
            {
                "value*": {**TEXT, "minLength": 1},
                "interpolate": default("none", choice("none", "cel")),
            }
        ),
    },
    oneOf=one_of("expression", "template"),
)

GENERATING_POLICY: Final = cel_policy(
    record(
        {
            **MATCH,
            "webhookConfiguration": WEBHOOK["webhookConfiguration"],
            "generate*": items(_GENERATION, minItems=1),
            "auditAnnotations": items(_ANNOTATION),
            "useServerSideApply": BOOLEAN,
            "evaluation": record(
                {
                    "admission": _switch(on=True),
                    "generateExisting": _switch(on=False),
                    "synchronize": _switch(on=False),
                    "orphanDownstreamOnPolicyDelete": _switch(on=False),
                    "skipBackgroundRequests": default(True, BOOLEAN),
                }
            ),
        }
    ),
    has_autogen=False,
    is_generated=False,
)

DELETING_POLICY: Final[Fields] = {
    "spec*": record(
        {
            "matchConstraints": MATCH["matchConstraints"],
            "variables": MATCH["variables"],
            "conditions": named(EXPRESSION),
            "schedule*": TEXT,
            "deletionPropagationPolicy": choice("Foreground", "Background", "Orphan"),
        }
    ),
    "status": record({"conditionStatus": _CONDITION_STATUS, "lastExecutionTime": TIME}),
}

CEL_POLICY_EXCEPTION: Final[Fields] = {
    "spec*": record(
        {
            "policyRefs*": items(record({"name*": TEXT, "kind*": TEXT})),
            "matchConditions": items(EXPRESSION),
            "images": TEXTS,
            "allowedValues": TEXTS,
            "reportResult": default("skip", choice("skip", "pass")),
            "expiresAt": TIME,
            "properties": TEXT_MAP,
            "evaluationMode": TEXT,
        }
    )
}
