"""Build the native admission policy and binding for a policy in CEL.

Room: controllers. Takes: a ValidatingPolicy or MutatingPolicy, its exceptions. Gives:
Generated, ``FROM_CEL``. Next: controllers/admission_policies/plans.py.
Source: docs/behaviour/cel 8; docs/behaviour/v1.19 3; Kyverno
pkg/admissionpolicy/builder.go, pkg/controllers/admissionpolicygenerator (v1.18.2).

An exception with several conditions requires all of them, and its images and values
apply to the objects that meet them. Upstream exempts objects that meet one condition,
and applies images and values to all objects. If a condition could fail in the API
server, nothing is generated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kyverno_mp.compiler.autogen.cel import copies_of
from kyverno_mp.compiler.autogen.mutating import copies_of as mutating_copies_of
from kyverno_mp.controllers.admission_policies.certain import cannot_fail
from kyverno_mp.controllers.admission_policies.constraints import Condition, text_of
from kyverno_mp.controllers.admission_policies.generated import (
    MUTATING,
    VALIDATING,
    Generated,
    binding_of,
    object_of,
    with_unique_names,
)
from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    JSON_MODE,
    CelPolicyException,
    Enabled,
    ValidatingPolicy,
)
from kyverno_mp.values.jsonvalue import Json

_NOT_ENABLED: Final = "skip generating {}: not enabled."
_AUTOGEN: Final = "skip generating {}: pod controllers autogen is enabled."
_NO_ADMISSION: Final = "skip generating {}: admission is not enabled."
_EXISTING: Final = (
    "skip generating {}: mutateExisting and its targets are not applicable."
)
_ATOMICS: Final = (
    "skip generating {}: useServerSideApply is enabled, which mutates atomic fields"
    " that a native MutatingAdmissionPolicy rejects."
)
_ANNOTATIONS: Final = "skip generating {}: auditAnnotations are not applicable."
_NEEDED: Final = "skip generating {}: exceptions in matchConditions are not applicable."
_MAY_FAIL: Final = "matchConditions of PolicyException {} are not applicable."
_FILLED: Final = {"allowedImages": "images", "allowedValues": "allowed_values"}
"""Maps a CEL variable to a field of an exception."""


def from_validating_policy(
    policy: ValidatingPolicy, exceptions: Sequence[CelPolicyException]
) -> Generated:
    """Return both objects, or the reason why none is generated.

    KYVERNO: failurePolicy is not copied; the API server's default is Fail.
    """
    spec = policy.spec
    autogen = spec.autogen
    wanted = None if autogen is None else autogen.validating_admission_policy
    reason = _reason(wanted, has_copies=bool(list(copies_of(spec))))
    evaluation = spec.evaluation
    if not reason and (
        policy.mode == JSON_MODE
        or (evaluation is not None and _is_off(evaluation.admission))
    ):
        reason = _NO_ADMISSION
    reason = reason or _may_fail(exceptions, spec.match_constraints, mutates=False)
    conditions, variables = _exempted(exceptions)
    raw: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": _constraints_of(spec.match_constraints),
        "matchConditions": with_unique_names(
            (
                *(
                    _as_condition(match_condition)
                    for match_condition in spec.match_conditions
                ),
                *conditions,
            )
        ),
        "variables": [variable.raw() for variable in spec.variables],
        "validations": [validation.raw() for validation in spec.validations],
        "auditAnnotations": [
            audit_annotation.raw() for audit_annotation in spec.audit_annotations
        ],
    }
    reason = reason or _fill(raw, variables)
    if reason:
        return Generated(message=reason.format(VALIDATING))
    name = f"vpol-{policy.metadata.name}"
    actions = list(dict.fromkeys(spec.validation_actions)) or ["Deny"]
    return Generated(
        VALIDATING,
        object_of(policy, name, _given(raw)),
        binding_of(policy, name, {"validationActions": actions}),
    )


def from_mutating_policy(
    policy: MutatingPolicy, exceptions: Sequence[CelPolicyException]
) -> Generated:
    """Return both objects, or the reason why none is generated."""
    spec = policy.spec
    autogen = spec.autogen
    wanted = None if autogen is None else autogen.mutating_admission_policy
    reason = _reason(wanted, has_copies=bool(list(mutating_copies_of(spec))))
    evaluation = spec.evaluation
    if not reason and evaluation is not None and _is_off(evaluation.admission):
        reason = _NO_ADMISSION
    existing = evaluation is not None and (
        evaluation.mutate_existing is not None
        and evaluation.mutate_existing.enabled is True
    )
    if not reason and (
        existing
        or spec.target_match_constraints is not None
        or spec.target_match_conditions
    ):
        reason = _EXISTING
    if not reason and evaluation is not None and evaluation.use_server_side_apply:
        reason = _ATOMICS
    if not reason and spec.audit_annotations:
        # K8S: a MutatingAdmissionPolicy has no such field.
        reason = _ANNOTATIONS
    reason = reason or _may_fail(exceptions, spec.match_constraints, mutates=True)
    conditions, variables = _exempted(exceptions)
    raw: Json = {
        "failurePolicy": spec.failure_policy,
        "reinvocationPolicy": spec.reinvocation_policy,
        "matchConstraints": _constraints_of(spec.match_constraints),
        "matchConditions": with_unique_names(
            (
                *conditions,
                *(
                    _as_condition(match_condition)
                    for match_condition in spec.match_conditions
                ),
            )
        ),
        "variables": [variable.raw() for variable in spec.variables],
        "mutations": [mutation.raw() for mutation in spec.mutations],
    }
    reason = reason or _fill(raw, variables)
    if reason:
        return Generated(message=reason.format(MUTATING))
    name = f"mpol-{policy.metadata.name}"
    return Generated(
        MUTATING,
        object_of(policy, name, _given(raw)),
        binding_of(policy, name, {}),
    )


FROM_CEL: Final[
    Mapping[str, Callable[[Any, Sequence[CelPolicyException]], Generated]]
] = {"validate": from_validating_policy, "mutate": from_mutating_policy}
"""The function for each type of results."""


def _reason(enabled: Enabled | None, *, has_copies: bool) -> str:
    if enabled is None or enabled.enabled is not True:
        return _NOT_ENABLED
    return _AUTOGEN if has_copies else ""


def _is_off(switch: Enabled | None) -> bool:
    return switch is not None and switch.enabled is False


def _as_condition(one: Json) -> Condition:
    return Condition(one.name, one.expression)


def _constraints_of(match_resources: MatchResources | None) -> Json:
    """Return ``matchConstraints`` with the selectors and excludes upstream drops."""
    raw: Json = {"matchPolicy": "Equivalent"}
    return {**raw, **match_resources.raw()} if match_resources is not None else raw


def _may_fail(
    exceptions: Iterable[CelPolicyException],
    matched: MatchResources | None,
    *,
    mutates: bool,
) -> str:
    """Return the reason why an exception could fail in the API server, or ""."""
    for exception in exceptions:
        given = (condition.expression for condition in exception.spec.match_conditions)
        if not cannot_fail(given, matched, mutates=mutates):
            return f"skip generating {{}}: {_MAY_FAIL.format(exception.key)}"
    return ""


def _exempted(
    exceptions: Iterable[CelPolicyException],
) -> tuple[list[Condition], dict[str, str]]:
    """Return the conditions of full exemptions, and the variables of the rest."""
    conditions: list[Condition] = []
    lists: dict[str, list[str]] = {name: [] for name in _FILLED}
    for exception in exceptions:
        spec = exception.spec
        given = [
            match_condition.expression for match_condition in spec.match_conditions
        ]
        met = given[0] if len(given) == 1 else " && ".join(f"({one})" for one in given)
        values = {name: getattr(spec, field) for name, field in _FILLED.items()}
        if not any(values.values()):
            name = spec.match_conditions[0].name if given else "exception"
            conditions.append(Condition(name, f"!({met or 'true'})"))
        for name, texts in values.items():
            if texts:
                quoted = f"[{', '.join(map(text_of, texts))}]"
                lists[name].append(f"(({met}) ? {quoted} : [])" if met else quoted)
    return conditions, {name: " + ".join(found) for name, found in lists.items()}


def _fill(raw: Json, variables: dict[str, str]) -> str:
    """Replace ``exceptions.x`` by variables; return why that is impossible, or ""."""
    if _mentions(raw["matchConditions"], variables):
        return _NEEDED
    mentioned = [
        name for name, text in variables.items() if text or _mentions(raw, (name,))
    ]
    made = [{"name": name, "expression": variables[name] or "[]"} for name in mentioned]
    # K8S: a variable can refer to variables before it.
    first = _mentions(raw["variables"], variables)
    given = _replaced(raw["variables"], variables)
    raw["variables"] = [*made, *given] if first else [*given, *made]
    for key in ("validations", "auditAnnotations", "mutations"):
        if key in raw:
            raw[key] = _replaced(raw[key], variables)
    return ""


def _mentions(value: Json, names: Iterable[str]) -> bool:
    """Return whether any text names one of the fields of ``exceptions``."""
    if isinstance(value, str):
        return any(f"exceptions.{name}" in value for name in names)
    inner = value.values() if isinstance(value, dict) else value
    return isinstance(value, dict | list) and any(
        _mentions(one, names) for one in inner
    )


def _replaced(value: Json, names: Iterable[str]) -> Json:
    if isinstance(value, str):
        for name in names:
            value = value.replace(f"exceptions.{name}", f"variables.{name}")
        return value
    if isinstance(value, dict):
        return {key: _replaced(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, names) for one in value]
    return value


def _given(raw: Json) -> Json:
    return {name: value for name, value in raw.items() if value}
