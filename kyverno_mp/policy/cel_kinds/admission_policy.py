"""Declare ValidatingAdmissionPolicy, MutatingAdmissionPolicy and their bindings.

Room: policy. Takes: raw documents of admissionregistration.k8s.io. Gives: typed
documents, or every structural problem at once. Next: compiler/admission_policy.py.
Source: k8s.io/api admissionregistration/v1 and v1beta1; docs/behaviour/cli 4 (accepted
kinds).
"""

from collections.abc import Mapping
from typing import Final, Literal

from kyverno_mp.policy.fields.meta import LabelSelector, NamedExpression, ObjectMeta
from kyverno_mp.policy.fields.record import FailurePolicy, Fields
from kyverno_mp.policy.fields.validation import (
    AuditAnnotation,
    CELValidation,
    ParamKind,
    ParamRef,
)
from kyverno_mp.policy.reading.decode import converted
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType

Operations = tuple[Literal["CREATE", "UPDATE", "DELETE", "CONNECT", "*"], ...]


class NamedRuleWithOperations(Fields, frozen=True):
    """Operations and resources to match; an empty list of names matches all names."""

    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    operations: Operations = ()
    scope: Literal["Cluster", "Namespaced", "*"] = "*"


class MatchResources(Fields, frozen=True):
    """``matchConstraints`` of a policy, ``matchResources`` of a binding."""

    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    resource_rules: tuple[NamedRuleWithOperations, ...] = ()
    exclude_resource_rules: tuple[NamedRuleWithOperations, ...] = ()
    match_policy: Literal["Exact", "Equivalent"] = "Equivalent"


class ValidatingSpec(Fields, frozen=True):
    """``spec`` of a ValidatingAdmissionPolicy."""

    param_kind: ParamKind | None = None
    match_constraints: MatchResources | None = None
    validations: tuple[CELValidation, ...] = ()
    failure_policy: FailurePolicy = "Fail"
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    match_conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()


class PatchExpression(Fields, frozen=True):
    """``applyConfiguration`` or ``jsonPatch`` of a mutation."""

    expression: str = ""


class Mutation(Fields, frozen=True, kw_only=True):
    """One change; the field of the other patch type is ignored."""

    patch_type: Literal["ApplyConfiguration", "JSONPatch"]
    apply_configuration: PatchExpression | None = None
    json_patch: PatchExpression | None = None


class MutatingSpec(Fields, frozen=True):
    """``spec`` of a MutatingAdmissionPolicy."""

    param_kind: ParamKind | None = None
    match_constraints: MatchResources | None = None
    variables: tuple[NamedExpression, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    failure_policy: FailurePolicy = "Fail"
    match_conditions: tuple[NamedExpression, ...] = ()
    reinvocation_policy: Literal["Never", "IfNeeded"] = "Never"


class BindingSpec(Fields, frozen=True):
    """``spec`` of a binding of either kind."""

    policy_name: str = ""
    param_ref: ParamRef | None = None
    match_resources: MatchResources | None = None


class ValidatingBindingSpec(BindingSpec, frozen=True):
    """``spec`` of a ValidatingAdmissionPolicyBinding."""

    validation_actions: tuple[Literal["Deny", "Warn", "Audit"], ...] = ()


class ValidatingAdmissionPolicy(Fields, frozen=True, kw_only=True):
    """A validating policy that the API server enforces itself."""

    api_version: str
    kind: Literal["ValidatingAdmissionPolicy"]
    metadata: ObjectMeta
    spec: ValidatingSpec
    status: Json = None


class MutatingAdmissionPolicy(Fields, frozen=True, kw_only=True):
    """A mutating policy that the API server applies itself."""

    api_version: str
    kind: Literal["MutatingAdmissionPolicy"]
    metadata: ObjectMeta
    spec: MutatingSpec
    status: Json = None


class ValidatingAdmissionPolicyBinding(Fields, frozen=True, kw_only=True):
    """The scope and the parameters of a policy."""

    api_version: str
    kind: Literal["ValidatingAdmissionPolicyBinding"]
    metadata: ObjectMeta
    spec: ValidatingBindingSpec


class MutatingAdmissionPolicyBinding(Fields, frozen=True, kw_only=True):
    """The scope and the parameters of a policy."""

    api_version: str
    kind: Literal["MutatingAdmissionPolicyBinding"]
    metadata: ObjectMeta
    spec: BindingSpec


AdmissionPolicy = ValidatingAdmissionPolicy | MutatingAdmissionPolicy
AdmissionBinding = ValidatingAdmissionPolicyBinding | MutatingAdmissionPolicyBinding

_GROUP: Final = "admissionregistration.k8s.io/"
_VALIDATING: Final = (f"{_GROUP}v1",)
_MUTATING: Final = (f"{_GROUP}v1alpha1", f"{_GROUP}v1beta1")
_Any = AdmissionPolicy | AdmissionBinding
_Versions = tuple[str, ...]
_KINDS: Final[Mapping[str, tuple[RecordType[_Any], _Versions]]] = {
    record.type.__name__: (record, versions)
    for record, versions in (
        (RecordType(ValidatingAdmissionPolicy), _VALIDATING),
        (RecordType(ValidatingAdmissionPolicyBinding), _VALIDATING),
        (RecordType(MutatingAdmissionPolicy), _MUTATING),
        (RecordType(MutatingAdmissionPolicyBinding), _MUTATING),
    )
}


def is_admission_policy(raw: Json) -> bool:
    """Return whether ``raw`` has a kind and version that this module decodes."""
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        return False
    kind = _KINDS.get(raw["kind"])
    return kind is not None and raw.get("apiVersion") in kind[1]


def decode_admission_policy(
    raw: dict[str, Json], *, file: str = ""
) -> AdmissionPolicy | AdmissionBinding:
    """Decode a document for which ``is_admission_policy`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    return converted(raw, _KINDS[raw["kind"]][0], file=file)
