"""Declare ValidatingPolicy, NamespacedValidatingPolicy and their PolicyException.

Room: policy. Takes: raw documents of policies.kyverno.io. Gives: typed documents, or
every structural problem at once. Next: compiler/cel_kinds/validating_policy.py.
Source: docs/behaviour/cel 1, 2; docs/behaviour/v1.19 4 (fields of exceptions).
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeGuard

import msgspec

from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources
from kyverno_mp.policy.expiry import expiry_ns, expiry_problems
from kyverno_mp.policy.fields.meta import NamedExpression, ObjectMeta
from kyverno_mp.policy.fields.record import FailurePolicy, Fields
from kyverno_mp.policy.fields.validation import AuditAnnotation, CELValidation
from kyverno_mp.policy.problems import Problem
from kyverno_mp.policy.reading.decode import converted
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_GROUP,
    CEL_POLICY_EXCEPTION,
    VALIDATING_POLICY,
)
from kyverno_mp.values.records import RecordType

JSON_MODE: Final = "JSON"
AUTHORIZATION_MODES: Final = ("HTTP", "Envoy")


class Enabled(Fields, frozen=True):
    """A switch; None means absent."""

    enabled: bool | None = None


class PodControllers(Fields, frozen=True):
    """The controllers of Pods; None = all, () = none."""

    controllers: tuple[str, ...] | None = None


class Autogen(Fields, frozen=True):
    """``autogen``."""

    pod_controllers: PodControllers | None = None
    validating_admission_policy: Enabled | None = None


class Evaluation(Fields, frozen=True):
    """``evaluation``."""

    mode: str = ""
    admission: Enabled | None = None
    background: Enabled | None = None


class WebhookConfiguration(Fields, frozen=True):
    """``webhookConfiguration``."""

    timeout_seconds: int | None = None


class ValidatingPolicySpec(Fields, frozen=True):
    """``spec`` of both kinds."""

    match_constraints: MatchResources | None = None
    validations: tuple[CELValidation, ...] = ()
    failure_policy: FailurePolicy = "Fail"
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    match_conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    autogen: Autogen | None = None
    validation_actions: tuple[Literal["Deny", "Audit", "Warn"], ...] = ()
    webhook_configuration: WebhookConfiguration | None = None
    evaluation: Evaluation | None = None


class _ValidatingPolicy(Fields, frozen=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ValidatingPolicySpec
    status: Json = None

    @property
    def mode(self) -> str:
        """``evaluation.mode``, "" if it is not set."""
        evaluation = self.spec.evaluation
        return evaluation.mode if evaluation is not None else ""


class ValidatingPolicy(_ValidatingPolicy, frozen=True, kw_only=True):
    """A policy in CEL for all namespaces and cluster-scoped objects."""

    kind: Literal["ValidatingPolicy"]


class NamespacedValidatingPolicy(_ValidatingPolicy, frozen=True, kw_only=True):
    """A policy in CEL for objects in its own namespace."""

    kind: Literal["NamespacedValidatingPolicy"]


class PolicyRef(Fields, frozen=True, kw_only=True):
    """The policy that an exception names."""

    name: str
    kind: str


class CelExceptionSpec(Fields, frozen=True, kw_only=True):
    """``spec`` of an exception, for all objects without ``match_conditions``."""

    policy_refs: tuple[PolicyRef, ...]
    match_conditions: tuple[NamedExpression, ...] = ()
    images: tuple[str, ...] = ()
    allowed_values: tuple[str, ...] = ()
    report_result: Literal["skip", "pass"] = "skip"
    expires_at: str = ""
    properties: dict[str, str] | None = None
    evaluation_mode: str = ""


class CelPolicyException(Fields, frozen=True, kw_only=True):
    """Objects that are exempt from policies in CEL."""

    api_version: str
    kind: Literal["PolicyException"]
    metadata: ObjectMeta
    spec: CelExceptionSpec

    @property
    def key(self) -> str:
        """Return ``namespace/name``, or ``name`` alone, as skip messages show it."""
        namespace, name = self.metadata.namespace, self.metadata.name
        return f"{namespace}/{name}" if namespace else name

    @property
    def expires_at_ns(self) -> int | None:
        """Return the Unix time from which it has no effect; None: it stays."""
        return expiry_ns(self.metadata.annotations, self.spec.expires_at)

    def expiry_problems(self) -> Iterator[Problem]:
        """Yield why it has no effect at any time."""
        return expiry_problems(self.metadata.annotations, self.spec.expires_at)


AnyValidatingPolicy = ValidatingPolicy | NamespacedValidatingPolicy
AuthorizationPolicy = ValidatingPolicy
"""A policy in evaluation mode HTTP or Envoy."""
CEL_EXCEPTION: Final = f"{CEL_GROUP}/{CEL_POLICY_EXCEPTION.kind}"
"""Name of this kind where it must differ from PolicyException of kyverno.io."""
_EXCEPTION: Final = RecordType(CelPolicyException)
_Any = AnyValidatingPolicy | CelPolicyException
_KINDS: Final[Mapping[str, tuple[RecordType[_Any], tuple[str, ...]]]] = {
    VALIDATING_POLICY.cluster.kind: (
        RecordType(ValidatingPolicy),
        VALIDATING_POLICY.cluster.api_versions,
    ),
    VALIDATING_POLICY.namespaced.kind: (
        RecordType(NamespacedValidatingPolicy),
        VALIDATING_POLICY.namespaced.api_versions,
    ),
    CEL_POLICY_EXCEPTION.kind: (
        _EXCEPTION,
        CEL_POLICY_EXCEPTION.api_versions,
    ),
}


def is_validating_policy(raw: Json) -> bool:
    """Return whether this module decodes ``raw`` and the compiler evaluates it.

    ValidatingPolicies in other evaluation modes authorize HTTP and Envoy requests.
    """
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        return False
    record = _KINDS.get(raw["kind"])
    if record is None or raw.get("apiVersion") not in record[1]:
        return False
    return not (raw["kind"] == VALIDATING_POLICY.name and mode_of_authorization(raw))


def is_cel_exception(raw: Json) -> bool:
    """Return whether ``raw`` is a PolicyException for policies in CEL."""
    return (
        type(raw) is dict
        and raw.get("kind") == CEL_POLICY_EXCEPTION.kind
        and raw.get("apiVersion") in CEL_POLICY_EXCEPTION.api_versions
    )


def is_authorization_policy(raw: Json) -> bool:
    """Return whether ``raw`` is a ValidatingPolicy that authorizes requests.

    KYVERNO: a NamespacedValidatingPolicy never is one.
    """
    return (
        type(raw) is dict
        and raw.get("kind") == VALIDATING_POLICY.name
        and raw.get("apiVersion") in VALIDATING_POLICY.cluster.api_versions
        and bool(mode_of_authorization(raw))
    )


def authorizes(document: msgspec.Struct) -> TypeGuard[AuthorizationPolicy]:
    """Return whether a policy authorizes HTTP or Envoy requests."""
    return (
        isinstance(document, AuthorizationPolicy)
        and document.mode in AUTHORIZATION_MODES
    )


def shown_kind(raw: dict[str, Json]) -> str:
    """Return the kind of a document, with its evaluation mode if it has such a mode."""
    kind = str(raw.get("kind", ""))
    if not is_authorization_policy(raw):
        return kind
    return f"{kind} in evaluation mode {mode_of_authorization(raw)}"


def evaluation_mode(raw: dict[str, Json]) -> str:
    """Return the evaluation mode that a document names, "" for none."""
    spec = raw.get("spec")
    evaluation = spec.get("evaluation") if type(spec) is dict else None
    mode = evaluation.get("mode") if type(evaluation) is dict else None
    return mode if type(mode) is str else ""


def mode_of_authorization(raw: dict[str, Json]) -> str:
    """Return the evaluation mode of an authorization policy, "" for other policies."""
    mode = evaluation_mode(raw)
    return mode if mode in AUTHORIZATION_MODES else ""


def decode_validating_policy(
    raw: dict[str, Json], *, file: str = ""
) -> AnyValidatingPolicy | CelPolicyException:
    """Decode a document for which one of the functions above is true.

    Raises: DocumentInvalid with all structural problems.
    """
    return converted(raw, _KINDS[raw["kind"]][0], file=file)


def decode_cel_exception(raw: dict[str, Json], *, file: str = "") -> CelPolicyException:
    """Decode a document for which ``is_cel_exception`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    return converted(raw, _EXCEPTION, file=file)
