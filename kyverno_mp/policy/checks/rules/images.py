"""Check verifyImages entries and their attestors.

Room: policy. Takes: a Rule, its index, the spec. Gives: problems. Next:
policy/check.py.
Source: Kyverno api/kyverno/v1/image_verification_types.go (Validate) at v1.18.2;
docs/behaviour/images 1.3 (mutateDigest with Audit).
"""

from typing import Final

import msgspec

from kyverno_mp.policy.checks.rules.subject import Problems, invalid, plain
from kyverno_mp.policy.documents.cluster_policy import Rule, Spec
from kyverno_mp.policy.fields.image_verification import (
    ATTESTOR_SET,
    Attestor,
    AttestorSet,
    ImageVerification,
    KeylessAttestor,
    StaticKeyAttestor,
)

_ALGORITHMS: Final = ("", "sha224", "sha256", "sha384", "sha512")


def check_images(rule: Rule, index: int, spec: Spec) -> Problems:
    """Check every entry; entries inherit the action that an earlier entry sets."""
    is_audit = spec.validation_failure_action.lower() != "enforce"
    for position, entry in enumerate(rule.verify_images):
        if entry.failure_action is not None:
            is_audit = entry.failure_action == "Audit"
        path = f"spec.rules[{index}].verifyImages[{position}]"
        yield from _check_entry(entry, path, rule.name, is_audit=is_audit)


def check_extractors(rule: Rule, index: int) -> Problems:
    """Reject the mutation of digests if an extractor has a query."""
    if rule.image_extractors is None:
        return
    if not any(entry.mutate_digest for entry in rule.verify_images):
        return
    extractors = [
        extractor for listed in rule.image_extractors.values() for extractor in listed
    ]
    if any(extractor.jmes_path for extractor in extractors):
        rule_path = f"spec.rules[{index}]"
        message = (
            "jmespath may not be used in an image extractor when mutating digests with "
            "verify images"
        )
        yield plain(
            f"{rule_path}.imageExtractors", rule.name, f"path: {rule_path}: {message}"
        )


def _check_entry(
    entry: ImageVerification, path: str, rule: str, *, is_audit: bool
) -> Problems:
    converted = entry.converted()
    if is_audit and entry.mutate_digest:
        detail = (
            "mutateDigest must be set to false for \u2018Audit\u2019 failure action"
        )
        yield invalid(f"{path}.mutateDigest", rule, True, detail)
    if not entry.image_references and not entry.image:
        yield invalid(path, rule, entry, "An image reference is required")
    for index, attestation in enumerate(entry.attestations):
        for position, attestors in enumerate(attestation.attestors):
            set_path = f"{path}.attestations[{index}].attestors[{position}]"
            yield from _check_set(attestors, set_path, rule)
    for index, attestors in enumerate(converted.attestors):
        yield from _check_set(attestors, f"{path}.attestors[{index}]", rule)
    if entry.type == "Notary":
        for attestor in (
            attestor for attestors in entry.attestors for attestor in attestors.entries
        ):
            for name, is_set in (
                ("Keyless", attestor.keyless),
                ("Keys", attestor.keys),
            ):
                if is_set is not None:
                    detail = f"{name} field is not allowed for type notary"
                    yield invalid(f"{path}.attestors", rule, entry, detail)


def _check_set(attestors: AttestorSet, path: str, rule: str) -> Problems:
    if attestors.count is not None and attestors.count > len(attestors.entries):
        yield invalid(path, rule, attestors, "Count cannot exceed length of entries")
    if not attestors.entries:
        yield invalid(path, rule, attestors, "An entry is required")
    for index, entry in enumerate(attestors.entries):
        yield from _check_attestor(entry, f"{path}.entries[{index}]", rule)


def _check_attestor(entry: Attestor, path: str, rule: str) -> Problems:
    kinds = (entry.keys, entry.certificates, entry.keyless, entry.attestor)
    if sum(kind is not None for kind in kinds) != 1:
        detail = "keys, certificates, keyless, or a nested attestor is required"
        yield invalid(path, rule, entry, detail)
    if entry.keys is not None:
        yield from _check_keys(entry.keys, f"{path}.keys", rule)
    certificates = entry.certificates
    if certificates and not certificates.cert and not certificates.cert_chain:
        detail = "cert or certChain required"
        yield invalid(f"{path}.certificates", rule, certificates, detail)
    if entry.keyless is not None:
        yield from _check_keyless(entry.keyless, f"{path}.keyless", rule)
    if entry.attestor is not None:
        attestor_path = f"{path}.attestor"
        try:
            nested = ATTESTOR_SET.convert(entry.attestor)
        except msgspec.ValidationError as error:
            yield invalid(attestor_path, rule, entry.attestor, str(error))
        else:
            yield from _check_set(nested, attestor_path, rule)


def _check_keys(keys: StaticKeyAttestor, path: str, rule: str) -> Problems:
    if not keys.public_keys and not keys.kms and keys.secret is None:
        yield invalid(path, rule, keys, "A public key, kms key or secret is required")
    if keys.public_keys and keys.signature_algorithm not in _ALGORITHMS:
        yield invalid(path, rule, keys, "Invalid signature algorithm provided")


def _check_keyless(keyless: KeylessAttestor, path: str, rule: str) -> Problems:
    if keyless.rekor is None and not keyless.roots:
        yield invalid(path, rule, keyless, "Either Rekor URL or roots are required")
    if keyless.rekor is not None and not keyless.rekor.url:
        yield invalid(path, rule, keyless, "An URL is required")
