"""Declare MutatingPolicy, GeneratingPolicy, DeletingPolicy and namespaced kinds.

Room: policy. Takes: raw documents of policies.kyverno.io. Gives: typed documents, or
every structural problem at once. Next: compiler/cel_kinds/mutating_policy.py,
compiler/cel_kinds/policies.py.
Source: docs/behaviour/cel 1, 2.
"""

from collections.abc import Mapping
from typing import Final, Literal

from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources, Mutation
from kyverno_mp.policy.cel_kinds.validating_policy import (
    Enabled,
    PodControllers,
    WebhookConfiguration,
)
from kyverno_mp.policy.fields.meta import NamedExpression, ObjectMeta
from kyverno_mp.policy.fields.record import FailurePolicy, Fields
from kyverno_mp.policy.fields.validation import AuditAnnotation
from kyverno_mp.policy.reading.decode import converted
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    API_VERSIONS,
    DELETING_POLICY,
    GENERATING_POLICY,
    MUTATING_POLICY,
)
from kyverno_mp.values.records import RecordType


class MutatingAutogen(Fields, frozen=True):
    """``autogen`` of a MutatingPolicy."""

    pod_controllers: PodControllers | None = None
    mutating_admission_policy: Enabled | None = None


class MutatingEvaluation(Fields, frozen=True):
    """``evaluation`` of a MutatingPolicy."""

    mode: str = ""
    admission: Enabled | None = None
    background: Enabled | None = None
    mutate_existing: Enabled | None = None
    skip_background_requests: bool = True
    use_server_side_apply: bool = False


class TargetConstraints(MatchResources, frozen=True):
    """``targetMatchConstraints``; alternatively, ``expression`` selects the targets."""

    expression: str = ""


class MutatingPolicySpec(Fields, frozen=True):
    """``spec`` of a MutatingPolicy."""

    match_constraints: MatchResources | None = None
    failure_policy: FailurePolicy = "Fail"
    match_conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    autogen: MutatingAutogen | None = None
    target_match_constraints: TargetConstraints | None = None
    target_match_conditions: tuple[NamedExpression, ...] = ()
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    webhook_configuration: WebhookConfiguration | None = None
    evaluation: MutatingEvaluation | None = None
    reinvocation_policy: str = "Never"


class Template(Fields, frozen=True, kw_only=True):
    """``template``: YAML documents, with placeholders if ``interpolate`` is cel."""

    value: str
    interpolate: Literal["none", "cel"] = "none"


class Generation(Fields, frozen=True):
    """One entry of ``generate``: an expression, or a template."""

    expression: str = ""
    template: Template | None = None


class GeneratingEvaluation(Fields, frozen=True):
    """``evaluation`` of a GeneratingPolicy."""

    admission: Enabled | None = None
    generate_existing: Enabled | None = None
    synchronize: Enabled | None = None
    orphan_downstream_on_policy_delete: Enabled | None = None
    skip_background_requests: bool = True


class GeneratingPolicySpec(Fields, frozen=True):
    """``spec`` of a GeneratingPolicy."""

    match_constraints: MatchResources | None = None
    match_conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    generate: tuple[Generation, ...] = ()
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    webhook_configuration: WebhookConfiguration | None = None
    evaluation: GeneratingEvaluation | None = None
    use_server_side_apply: bool = False


class DeletingPolicySpec(Fields, frozen=True):
    """``spec`` of a DeletingPolicy."""

    match_constraints: MatchResources | None = None
    conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    schedule: str = ""
    deletion_propagation_policy: Literal["", "Foreground", "Background", "Orphan"] = ""


class _CelPolicy(Fields, frozen=True, kw_only=True):
    api_version: str
    metadata: ObjectMeta
    status: Json = None


class MutatingPolicy(_CelPolicy, frozen=True, kw_only=True):
    """A policy in CEL that changes objects."""

    kind: Literal["MutatingPolicy", "NamespacedMutatingPolicy"]
    spec: MutatingPolicySpec


class GeneratingPolicy(_CelPolicy, frozen=True, kw_only=True):
    """A policy in CEL that creates objects when other objects change."""

    kind: Literal["GeneratingPolicy", "NamespacedGeneratingPolicy"]
    spec: GeneratingPolicySpec


class DeletingPolicy(_CelPolicy, frozen=True, kw_only=True):
    """A policy in CEL that deletes objects on a schedule."""

    kind: Literal["DeletingPolicy", "NamespacedDeletingPolicy"]
    spec: DeletingPolicySpec


ReviewedCelPolicy = MutatingPolicy | GeneratingPolicy
"""The kinds that reviews evaluate."""
AnyCelPolicy = ReviewedCelPolicy | DeletingPolicy
_KINDS: Final[Mapping[str, RecordType[AnyCelPolicy]]] = {
    **dict.fromkeys(MUTATING_POLICY.names, RecordType(MutatingPolicy)),
    **dict.fromkeys(GENERATING_POLICY.names, RecordType(GeneratingPolicy)),
    **dict.fromkeys(DELETING_POLICY.names, RecordType(DeletingPolicy)),
}


def is_cel_policy(raw: Json) -> bool:
    """Return whether this module decodes ``raw``."""
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        return False
    if raw["kind"] not in _KINDS:
        return False
    return raw.get("apiVersion") in API_VERSIONS[raw["kind"]]


def decode_cel_policy(raw: dict[str, Json], *, file: str = "") -> AnyCelPolicy:
    """Decode a document for which ``is_cel_policy`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    return converted(raw, _KINDS[raw["kind"]], file=file)
