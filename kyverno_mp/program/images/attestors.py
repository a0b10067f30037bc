"""Require the signatures that attestor sets specify, with counts and nested sets.

Room: program.images. Takes: AttestorSets after substitution. Gives: Failures; none if
all sets are satisfied. Next: program/images/rule.
May touch: registries through program/ports.py.
Source: docs/behaviour/images 1.2, 2.4.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.policy.fields.image_verification import (
    ATTESTOR_SET,
    Attestation,
    Attestor,
    AttestorSet,
    CTLog,
    ImageVerification,
    KeylessAttestor,
    Rekor,
)
from kyverno_mp.program.key_entries import expanded, key_of
from kyverno_mp.program.ports import (
    Identity,
    LogTerms,
    RegistryAccess,
    ReviewedImages,
    SignatureQuery,
)

_NOTARY: Final = "Notary"
_PUBLIC_LOG: Final = "https://rekor.sigstore.dev"


class Failure(NamedTuple):
    """Why an attestor is not satisfied; ``is_outage``: it could not be checked."""

    text: str
    is_outage: bool = False


class BlockReader(NamedTuple):
    """Data shared by all attestors of one block."""

    block: ImageVerification
    images: ReviewedImages
    deadline_ns: int
    is_tenants: bool = False
    """Whether the policy is namespaced, and thus in ``namespace``."""
    namespace: str = ""

    @property
    def access(self) -> RegistryAccess:
        """The block's settings for access to registries."""
        credentials = self.block.image_registry_credentials
        if credentials is None:
            return RegistryAccess(is_tenants=self.is_tenants)
        return RegistryAccess(
            credentials.allow_insecure_registry,
            tuple(credentials.providers),
            credentials.secrets,
            self.is_tenants,
        )

    def query(
        self, entry: Attestor, image: str, predicate_type: str = ""
    ) -> SignatureQuery:
        """Return the query for one entry without a nested set."""
        key = certificate = chain = ""
        identity = Identity()
        # KYVERNO: the block's roots apply unless the entry is keyless.
        roots = self.block.roots
        algorithm = entry.signature_algorithm
        logs = LogTerms()
        if entry.keys is not None:
            key = key_of(entry.keys)
            logs = _logs_of(entry.keys.rekor, entry.keys.ctlog)
            # KYVERNO: the entry's own algorithm has no effect on keys.
            algorithm = entry.keys.signature_algorithm
        elif entry.certificates is not None:
            certificate = entry.certificates.cert
            chain = entry.certificates.cert_chain
            logs = _logs_of(entry.certificates.rekor, entry.certificates.ctlog)
        elif entry.keyless is not None:
            roots = entry.keyless.roots
            identity = _identity_of(entry.keyless)
            logs = _logs_of(entry.keyless.rekor, entry.keyless.ctlog)
        else:
            raise _nobody()
        if not (key or certificate or chain or entry.keyless):
            raise _nobody()
        return SignatureQuery(
            image=image,
            key=key,
            certificate=certificate,
            chain=chain,
            roots=roots,
            identity=identity,
            is_keyless=entry.keyless is not None,
            logs=logs,
            algorithm=algorithm,
            # KYVERNO: the entry's annotations replace the block's.
            annotations=entry.annotations or self.block.annotations,
            repository=entry.repository or self.block.repository,
            oci11=self.block.cosign_oci11,
            predicate_type=predicate_type,
            access=self.access,
            form=self.block.type or "Cosign",
            use_cache=self.block.use_cache,
            is_tenants=self.is_tenants,
            namespace=self.namespace,
        )

    def kind_of(self, entry: Attestor) -> str:
        """Return the last part of an entry's path."""
        if self.block.type == _NOTARY:
            return ""
        if entry.keys is not None:
            return ".keys"
        if entry.certificates is not None:
            return ".certificates"
        return ".keyless" if entry.keyless is not None else ""


def _nobody() -> ExpressionFailed:
    """SAFETY: an attestor without a signer would otherwise accept any signature."""
    return ExpressionFailed(
        "image.attestor", "the attestor names no key, certificate or identity"
    )


def _logs_of(rekor: Rekor | None, ctlog: CTLog | None) -> LogTerms:
    # KYVERNO: the URL of a block that omits it stays empty.
    rekor = rekor or Rekor(url=_PUBLIC_LOG)
    ctlog = ctlog or CTLog()
    return LogTerms(
        is_ignored=rekor.ignore_tlog,
        url=rekor.url,
        key=rekor.pubkey,
        ignores_scts=ctlog.ignore_sct,
        scts_key=ctlog.pubkey,
        tsa_chain=ctlog.tsa_cert_chain,
    )


def _identity_of(keyless: KeylessAttestor) -> Identity:
    return Identity(
        subject=keyless.subject,
        subject_reg_exp=keyless.subject_reg_exp,
        issuer=keyless.issuer,
        issuer_reg_exp=keyless.issuer_reg_exp,
        extensions=tuple(sorted(keyless.additional_extensions.items())),
    )


def verify_sets(reader: BlockReader, image: str) -> list[Failure]:
    """Verify all sets of a block; return the failures of the first failed set."""
    for index, listed in enumerate(reader.block.attestors):
        failures = _verify_set(reader, listed, image, f".attestors[{index}]")
        if failures:
            return failures
    return []


def _verify_set(
    reader: BlockReader, listed: AttestorSet, image: str, path: str
) -> list[Failure]:
    entries = list(expanded(listed))
    required = listed.count or len(entries)
    failures: list[Failure] = []
    verified = 0
    for index, entry in enumerate(entries):
        entry_failures = _verify_entry(reader, entry, image, f"{path}.entries[{index}]")
        failures.extend(entry_failures)
        verified += not entry_failures
        if verified >= required:
            return []
    if not entries:
        return [Failure(f"{path}: no entries")]
    return failures or [
        Failure(f"{path}: count {required} exceeds the {len(entries)} entries")
    ]


def attestation_sets(
    block: ImageVerification, attestation: Attestation, path: str
) -> Iterator[tuple[str, AttestorSet]]:
    """Yield the sets that have to sign an attestation, with their paths.

    SAFETY: an attestation without attestors has those of its block; upstream accepts
    any keyless signer.
    """
    listed, prefix = attestation.attestors, f"{path}."
    if not listed:
        listed, prefix = block.attestors, "."
    for index, attestor_set in enumerate(listed):
        yield f"{prefix}attestors[{index}]", attestor_set


def nested_set(entry: Attestor, path: str) -> AttestorSet:
    """Return the set inside an entry. Raises: ExpressionFailed."""
    try:
        return ATTESTOR_SET.convert(entry.attestor)
    except msgspec.ValidationError as error:
        message = f"failed to unmarshal nested attestor {path}: {error}"
        raise ExpressionFailed("image.attestor", message) from error


def _verify_entry(
    reader: BlockReader, entry: Attestor, image: str, path: str
) -> list[Failure]:
    if entry.attestor is not None:
        try:
            nested = nested_set(entry, path)
        except ExpressionFailed as error:
            return [Failure(error.message)]
        return _verify_set(reader, nested, image, f"{path}.attestor")
    try:
        reader.images.verify(reader.query(entry, image), reader.deadline_ns)
    except (ExpressionFailed, DependencyError) as error:
        message = f"{path}{reader.kind_of(entry)}: {error.message}"
        return [Failure(message, isinstance(error, DependencyError))]
    return []
