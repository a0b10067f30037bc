"""Declare the body of a validate rule.

Room: policy. Takes: nothing. Gives: Validation and its parts. Next: rules;
compiler/rules/body. Patterns and assertion trees are free-form.
Source: docs/behaviour/engine 5 and 6; docs/behaviour/controllers 1.2 (Validation).
"""

from typing import Final, Literal

import msgspec

from kyverno_mp.policy.fields.conditions import AnyAllConditions
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.image_verification import AttestorSet, Deny
from kyverno_mp.policy.fields.meta import LabelSelector, NamedExpression
from kyverno_mp.policy.fields.record import FailureAction, Fields, LooseFailureAction
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType

ControlName = Literal[
    "HostProcess",
    "Host Namespaces",
    "Privileged Containers",
    "Capabilities",
    "HostPath Volumes",
    "Host Ports",
    "AppArmor",
    "SELinux",
    "/proc Mount Type",
    "Seccomp",
    "Sysctls",
    "Volume Types",
    "Privilege Escalation",
    "Running as Non-root",
    "Running as Non-root user",
]
StandardVersion = Literal[
    "v1.19",
    "v1.20",
    "v1.21",
    "v1.22",
    "v1.23",
    "v1.24",
    "v1.25",
    "v1.26",
    "v1.27",
    "v1.28",
    "v1.29",
    "v1.30",
    "v1.31",
    "v1.32",
    "latest",
]


class FailureActionOverride(Fields, frozen=True):
    """One override; the lower-case actions are deprecated."""

    action: LooseFailureAction | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class ForEachValidation(Fields, frozen=True):
    """One ``foreach`` entry; exactly one of pattern, anyPattern, deny, foreach."""

    list: str = ""
    element_scope: bool | None = None
    context: tuple[ContextEntry, ...] = ()
    preconditions: AnyAllConditions | None = None
    pattern: Json = None
    any_pattern: Json = None
    deny: Deny | None = None
    foreach: "tuple[ForEachValidation, ...] | None" = None


class PodSecurityStandard(Fields, frozen=True, kw_only=True):
    """One ``exclude`` entry of podSecurity or of a PolicyException."""

    control_name: ControlName
    images: tuple[str, ...] = ()
    restricted_field: str = ""
    values: tuple[str, ...] = ()


class PodSecurity(Fields, frozen=True):
    """``podSecurity``; the version is kept as written."""

    level: Literal["privileged", "baseline", "restricted"] | None = None
    version: StandardVersion | None = None
    exclude: tuple[PodSecurityStandard, ...] = ()


class CELValidation(Fields, frozen=True, kw_only=True):
    """One CEL expression with its message."""

    expression: str
    message: str = ""
    reason: str = ""
    message_expression: str = ""


class ParamKind(Fields, frozen=True):
    """The kind of parameters."""

    api_version: str = ""
    kind: str = ""


class ParamRef(Fields, frozen=True):
    """The selected parameters, by name or by selector."""

    name: str = ""
    namespace: str = ""
    selector: LabelSelector | None = None
    parameter_not_found_action: str | None = None


class AuditAnnotation(Fields, frozen=True, kw_only=True):
    """An annotation that upstream evaluates and discards."""

    key: str
    value_expression: str


class CEL(Fields, frozen=True):
    """``cel``."""

    generate: bool = False
    expressions: tuple[CELValidation, ...] = ()
    param_kind: ParamKind | None = None
    param_ref: ParamRef | None = None
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    variables: tuple[NamedExpression, ...] = ()


class ObjectReference(Fields, frozen=True):
    """A set of objects in ``ignoreFields``."""

    group: str = ""
    version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


class ObjectFieldBinding(Fields, frozen=True):
    """Fields that the signature check ignores."""

    fields: tuple[str, ...] = ()
    objects: tuple[ObjectReference, ...] = ()


class DryRun(Fields, frozen=True):
    """Settings of the dry run before a manifest is compared."""

    enable: bool = False
    namespace: str = ""


class Manifests(Fields, frozen=True):
    """``manifests``: signed YAML."""

    attestors: tuple[AttestorSet, ...] = ()
    annotation_domain: str = ""
    ignore_fields: tuple[ObjectFieldBinding, ...] = ()
    dry_run: DryRun | None = None
    repository: str = ""


MANIFESTS: Final = RecordType(Manifests)


class Validation(Fields, frozen=True):
    """``validate``; exactly one body must be set (policy/checks/rules/bodies.py)."""

    failure_action: FailureAction | None = None
    failure_action_overrides: tuple[FailureActionOverride, ...] = ()
    allow_existing_violations: bool = True
    message: str = ""
    manifests: Manifests | None = None
    foreach: tuple[ForEachValidation, ...] | None = None
    pattern: Json = None
    any_pattern: Json = None
    deny: Deny | None = None
    pod_security: PodSecurity | None = None
    cel: CEL | None = None
    assertion: dict[str, Json] | None = msgspec.field(default=None, name="assert")
