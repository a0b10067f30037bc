"""Declare ImageValidatingPolicy and NamespacedImageValidatingPolicy.

Room: policy. Takes: raw documents of policies.kyverno.io. Gives: typed documents, or
every structural problem at once. Next: compiler/cel_kinds/image_validating_policy.py.
Source: docs/behaviour/cel 1, 2; docs/behaviour/images 8.
"""

from typing import Final, Literal

import msgspec

from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources
from kyverno_mp.policy.cel_kinds.validating_policy import (
    Evaluation,
    PodControllers,
    WebhookConfiguration,
)
from kyverno_mp.policy.fields.meta import NamedExpression, ObjectMeta
from kyverno_mp.policy.fields.record import FailurePolicy, Fields
from kyverno_mp.policy.fields.validation import AuditAnnotation, CELValidation
from kyverno_mp.policy.reading.decode import converted
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    API_VERSIONS,
    IMAGE_VALIDATING_POLICY,
)
from kyverno_mp.values.records import RecordType


class GivenText(Fields, frozen=True):
    """A string, or the expression that computes it."""

    value: str = ""
    expression: str = ""


class KeyAttestor(Fields, frozen=True):
    """``cosign.key``; ``data`` takes precedence over ``kms``."""

    data: str = ""
    kms: str = ""
    hash_algorithm: str = ""
    expression: str = ""


class PolicyIdentity(Fields, frozen=True):
    """One of ``cosign.keyless.identities``."""

    issuer: str = ""
    issuer_reg_exp: str = ""
    subject: str = ""
    subject_reg_exp: str = ""
    subject_expression: str = ""


class PolicyKeyless(Fields, frozen=True):
    """``cosign.keyless``. KYVERNO: ``roots`` have no effect (images 8)."""

    identities: tuple[PolicyIdentity, ...] = ()
    roots: str = ""
    additional_extensions: dict[str, str] = msgspec.field(default_factory=dict)


class PolicyCertificate(Fields, frozen=True):
    """``cosign.certificate``."""

    cert: GivenText | None = None
    cert_chain: GivenText | None = None


class PullSecret(Fields, frozen=True):
    """The name of a Secret."""

    name: str = ""


class SignatureSource(Fields, frozen=True):
    """``cosign.source``: the location of the signatures."""

    repository: str = ""
    # KYVERNO: upstream's spelling, with a capital letter.
    pull_secrets: tuple[PullSecret, ...] = msgspec.field(default=(), name="PullSecrets")
    tag_prefix: str = ""


class LogSettings(Fields, frozen=True):
    """``cosign.ctlog``."""

    url: str = ""
    rekor_pub_key: str = ""
    ct_log_pub_key: str = ""
    tsa_cert_chain: str = ""
    insecure_ignore_tlog: bool = False
    insecure_ignore_sct: bool = msgspec.field(default=False, name="insecureIgnoreSCT")


class TufRoot(Fields, frozen=True):
    """``cosign.tuf.root``: the first root metadata in base64, or a path."""

    path: str = ""
    data: str = ""


class Tuf(Fields, frozen=True):
    """``cosign.tuf``: the TUF repository of the attestor."""

    root: TufRoot | None = None
    mirror: str = ""


class CosignAttestor(Fields, frozen=True):
    """``cosign``."""

    key: KeyAttestor | None = None
    keyless: PolicyKeyless | None = None
    certificate: PolicyCertificate | None = None
    source: SignatureSource | None = None
    ctlog: LogSettings | None = None
    tuf: Tuf | None = None
    trusted_root: GivenText | None = None
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class NotaryAttestor(Fields, frozen=True):
    """``notary``: trusted certificates of signers and of timestamp authorities."""

    certs: GivenText | None = None
    tsa_certs: GivenText | None = None


class PolicyAttestor(Fields, frozen=True, kw_only=True):
    """One of ``attestors``."""

    name: str
    cosign: CosignAttestor | None = None
    notary: NotaryAttestor | None = None


class StatementType(Fields, frozen=True):
    """The type of a statement or of a referrer."""

    type: str = ""


class PolicyAttestation(Fields, frozen=True, kw_only=True):
    """One of ``attestations``."""

    name: str
    intoto: StatementType | None = None
    referrer: StatementType | None = None


class MatchImageReference(Fields, frozen=True):
    """One of ``matchImageReferences``."""

    glob: str = ""
    expression: str = ""


class RegistryCredentials(Fields, frozen=True):
    """``credentials``."""

    allow_insecure_registry: bool = False
    providers: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


class ValidationConfigurations(Fields, frozen=True):
    """``validationConfigurations``, as of 1.19 (docs/behaviour/v1.19 5).

    The API server adds the whole block to stored policies. Without it, as in files,
    only ``mutate_digest`` counts.
    """

    mutate_digest: bool = True
    verify_digest: bool = True
    required: bool = True


class ImageAutogen(Fields, frozen=True):
    """``autogen``."""

    pod_controllers: PodControllers | None = None


class ImageValidatingPolicySpec(Fields, frozen=True):
    """``spec`` of both kinds."""

    match_constraints: MatchResources | None = None
    failure_policy: FailurePolicy = "Fail"
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    validation_actions: tuple[Literal["Deny", "Audit", "Warn"], ...] = ()
    match_conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    validation_configurations: ValidationConfigurations | None = None
    match_image_references: tuple[MatchImageReference, ...] = ()
    credentials: RegistryCredentials | None = None
    images: tuple[NamedExpression, ...] = ()
    attestors: tuple[PolicyAttestor, ...] = ()
    attestations: tuple[PolicyAttestation, ...] = ()
    validations: tuple[CELValidation, ...] = ()
    webhook_configuration: WebhookConfiguration | None = None
    evaluation: Evaluation | None = None
    autogen: ImageAutogen | None = None


class ImageValidatingPolicy(Fields, frozen=True, kw_only=True):
    """A policy in CEL about the images of an object."""

    api_version: str
    kind: Literal["ImageValidatingPolicy", "NamespacedImageValidatingPolicy"]
    metadata: ObjectMeta
    spec: ImageValidatingPolicySpec
    status: Json = None

    @property
    def mode(self) -> str:
        """``evaluation.mode``, "" if it is not set."""
        evaluation = self.spec.evaluation
        return evaluation.mode if evaluation is not None else ""


_RECORD: Final = RecordType(ImageValidatingPolicy)


def is_image_policy(raw: Json) -> bool:
    """Return whether this module decodes ``raw``."""
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        return False
    kind = raw["kind"]
    is_known = kind in IMAGE_VALIDATING_POLICY.names
    return is_known and raw.get("apiVersion") in API_VERSIONS[kind]


def decode_image_policy(
    raw: dict[str, Json], *, file: str = ""
) -> ImageValidatingPolicy:
    """Decode a document for which ``is_image_policy`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    return converted(raw, _RECORD, file=file)
