"""Declare verifyImages and attestors, which manifest rules also use.

Room: policy. Takes: nothing. Gives: ImageVerification, AttestorSet. Next: rules;
images/, which verifies images.
Source: docs/behaviour/controllers 1.2 (ImageVerification, AttestorSet), 12.
"""

from typing import Annotated, Final, Literal

import msgspec

from kyverno_mp.policy.fields.conditions import AnyAllConditions
from kyverno_mp.policy.fields.context import ImageRegistryCredentials
from kyverno_mp.policy.fields.record import FailureAction, Fields
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType


class Rekor(Fields, frozen=True):
    """The transparency log."""

    url: str = ""
    pubkey: str = ""
    ignore_tlog: bool = False


class CTLog(Fields, frozen=True):
    """The certificate transparency log."""

    ignore_sct: bool = msgspec.field(default=False, name="ignoreSCT")
    pubkey: str = ""
    tsa_cert_chain: str = ""


class SecretReference(Fields, frozen=True, kw_only=True):
    """A Secret with a key."""

    name: str
    namespace: str


class StaticKeyAttestor(Fields, frozen=True):
    """``keys``: PEM text, a KMS address or a Secret."""

    public_keys: str = ""
    signature_algorithm: str = "sha256"
    kms: str = ""
    secret: SecretReference | None = None
    rekor: Rekor | None = None
    ctlog: CTLog | None = None


class CertificateAttestor(Fields, frozen=True):
    """``certificates``: PEM strings."""

    cert: str = ""
    cert_chain: str = ""
    rekor: Rekor | None = None
    ctlog: CTLog | None = None


class KeylessAttestor(Fields, frozen=True):
    """``keyless``: the required signer."""

    rekor: Rekor | None = None
    ctlog: CTLog | None = None
    issuer: str = ""
    issuer_reg_exp: str = ""
    subject: str = ""
    subject_reg_exp: str = ""
    roots: str = ""
    additional_extensions: dict[str, str] = msgspec.field(default_factory=dict)


class Attestor(Fields, frozen=True):
    """One entry of a set; ``attestor`` is a nested set, kept as raw JSON."""

    keys: StaticKeyAttestor | None = None
    certificates: CertificateAttestor | None = None
    keyless: KeylessAttestor | None = None
    attestor: Json = None
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    repository: str = ""
    signature_algorithm: str = "sha256"


class AttestorSet(Fields, frozen=True):
    """A set of which ``count`` entries must verify the image; absent means all."""

    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    entries: tuple[Attestor, ...] = ()


ATTESTOR_SET: Final = RecordType(AttestorSet)


class Attestation(Fields, frozen=True):
    """A statement that must be attached to the image."""

    name: str = ""
    predicate_type: str = ""
    type: str = ""
    attestors: tuple[AttestorSet, ...] = ()
    conditions: tuple[AnyAllConditions, ...] = ()


class Deny(Fields, frozen=True):
    """``deny``; conditions are free-form in the CRD: any/all, or the legacy list."""

    conditions: Json = None


class ValidateImageVerification(Fields, frozen=True):
    """``validate`` of a verifyImages entry."""

    message: str = ""
    deny: Deny | None = None


class ImageVerification(Fields, frozen=True):
    """One verifyImages entry; ``image`` to ``additional_extensions`` are deprecated."""

    failure_action: FailureAction | None = None
    type: Literal["Cosign", "SigstoreBundle", "Notary"] | None = None
    image: str = ""
    image_references: tuple[str, ...] = ()
    skip_image_references: tuple[str, ...] = ()
    key: str = ""
    roots: str = ""
    subject: str = ""
    issuer: str = ""
    additional_extensions: dict[str, str] = msgspec.field(default_factory=dict)
    attestors: tuple[AttestorSet, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    repository: str = ""
    cosign_oci11: bool = msgspec.field(default=False, name="cosignOCI11")
    mutate_digest: bool = True
    verify_digest: bool = True
    validate: ValidateImageVerification | None = None
    required: bool = True
    image_registry_credentials: ImageRegistryCredentials | None = None
    use_cache: bool = True

    def converted(self) -> "ImageVerification":
        """Return the block with an attestor instead of the deprecated fields.

        KYVERNO: a block with attestations loses this attestor, and ``image`` alone
        creates none (docs/behaviour/images 1.4).
        """
        if not (self.image or self.key or self.issuer):
            return self
        references, attestors = self.image_references, self.attestors
        if self.image:
            references = (*references, self.image)
        if (self.key or self.issuer) and not self.attestations:
            attestors = (*attestors, AttestorSet(entries=(self._signer(),)))
        return msgspec.structs.replace(
            self,
            image="",
            key="",
            issuer="",
            subject="",
            roots="",
            image_references=references,
            attestors=attestors,
        )

    def _signer(self) -> Attestor:
        if self.key:
            keys = StaticKeyAttestor(public_keys=self.key, signature_algorithm="")
            return Attestor(annotations=self.annotations, keys=keys)
        keyless = KeylessAttestor(
            issuer=self.issuer, subject=self.subject, roots=self.roots
        )
        return Attestor(annotations=self.annotations, keyless=keyless)


IMAGE_VERIFICATION: Final = RecordType(ImageVerification)
