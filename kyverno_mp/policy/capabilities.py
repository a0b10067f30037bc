"""Name the features of a rule that this version cannot evaluate yet.

Room: policy. Takes: a Rule. Gives: the missing capability's name. Next: the compiler,
which marks such rules; the CLI and the status, which report them.
Source: docs/behaviour/engine 6 and 7 (bodies of rules);
docs/behaviour/images 1 (attestors).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.image_verification import (
    ATTESTOR_SET,
    Attestor,
    AttestorSet,
    ImageVerification,
    KeylessAttestor,
)
from kyverno_mp.policy.fields.validation import Manifests

_BLOCK = "verifyImages"
_NOTARY = "Notary"
_MANIFESTS = "validate.manifests"
_ANY_SIGNER: Final = "upstream accepts any signer"
REFUSED: Final[Mapping[str, str]] = {
    ".repository": "of `validate.manifests`: its signatures are read from the object;"
    " upstream keeps the value for later entries",
    ".attestor": "a nested set of attestors that is not valid",
    ".keys without publicKeys or secret": _ANY_SIGNER,
    ".certificates without cert or certChain": "it names nobody to trust",
    ".keyless with regular expressions": "of `validate.manifests`: upstream ignores"
    " them",
    ".additionalExtensions": "upstream ignores them",
    ".keyless without subject": f"of `validate.manifests`: {_ANY_SIGNER}",
    ".subject without issuer": "upstream ignores the subject",
    ".image with annotations": "without key and issuer, no signer is named",
    " of type Notary without certificates": "upstream crashes",
    " without keys, certificates or keyless": "it names nobody to trust",
}
"""What is refused in rules that verify images or manifests, by the end of its path, and
why; docs/refused.md is generated from it."""


def missing_capability(rule: Rule, *, verifies: bool = False) -> str:
    """Return the missing capability that ``rule`` needs, "" if there is none.

    ``verifies``: the caller can verify images.
    """
    if rule.verify_images or _BLOCK in rule.types():
        if not verifies:
            return _BLOCK
        return next(
            (feature for b in rule.verify_images for feature in _missing(b)), ""
        )
    body = rule.validate
    if body is not None and body.manifests is not None and body.manifests.attestors:
        return next(_in_manifests(body.manifests), "") if verifies else _MANIFESTS
    return ""


def _refused(path: str, end: str) -> str:
    """Return the path of a refused feature, which the table has to explain."""
    assert end in REFUSED
    return path + end


def _in_manifests(manifests: Manifests) -> Iterator[str]:
    if manifests.repository:
        yield _refused(_MANIFESTS, ".repository")
    for listed in manifests.attestors:
        yield from _in_manifest_set(listed, f"{_MANIFESTS}.attestors")


def _in_manifest_set(listed: AttestorSet, path: str) -> Iterator[str]:
    for entry in listed.entries:
        if entry.attestor is not None:
            try:
                nested = ATTESTOR_SET.convert(entry.attestor)
            except msgspec.ValidationError:
                yield _refused(path, ".attestor")
            else:
                yield from _in_manifest_set(nested, path)
        elif entry.keys is not None:
            if not entry.keys.public_keys and entry.keys.secret is None:
                # SAFETY: without publicKeys, upstream accepts any signer.
                yield _refused(path, ".keys without publicKeys or secret")
        elif entry.certificates is not None:
            if not (entry.certificates.cert or entry.certificates.cert_chain):
                yield _refused(path, ".certificates without cert or certChain")
        elif entry.keyless is not None:
            yield from _in_manifest_keyless(entry.keyless, path)
        if entry.repository:
            yield _refused(path, ".repository")


def _in_manifest_keyless(keyless_attestor: KeylessAttestor, path: str) -> Iterator[str]:
    # SAFETY: upstream ignores the expressions; without a subject, it accepts any
    # signer.
    if keyless_attestor.subject_reg_exp or keyless_attestor.issuer_reg_exp:
        yield _refused(path, ".keyless with regular expressions")
    if keyless_attestor.additional_extensions:
        yield _refused(f"{path}.keyless", ".additionalExtensions")
    if not keyless_attestor.subject:
        yield _refused(path, ".keyless without subject")


def _missing(block: ImageVerification) -> Iterator[str]:
    """Yield the features of the block that this version lacks.

    The names are precise, so that users know what to change. A block with such a
    feature is never evaluated in part.
    """
    # SAFETY: upstream ignores these fields, although the author relies on them.
    if block.subject and (block.key or not block.issuer):
        yield _refused(_BLOCK, ".subject without issuer")
    if block.additional_extensions:
        yield _refused(_BLOCK, ".additionalExtensions")
    if block.image and block.annotations and not (block.key or block.issuer):
        # KYVERNO: upstream creates an attestor from them that names no signer.
        yield _refused(_BLOCK, ".image with annotations")
    is_notary = block.type == _NOTARY
    for listed in block.attestors:
        yield from _in_set(listed, f"{_BLOCK}.attestors", is_notary=is_notary)
    for attestation in block.attestations:
        path = f"{_BLOCK}.attestations.attestors"
        for listed in attestation.attestors:
            yield from _in_set(listed, path, is_notary=is_notary)


def _in_set(
    listed: AttestorSet, path: str, *, is_notary: bool = False
) -> Iterator[str]:
    for entry in listed.entries:
        if entry.attestor is None:
            yield from (_in_notary if is_notary else _in_entry)(entry, path)
        else:
            try:
                nested = ATTESTOR_SET.convert(entry.attestor)
            except msgspec.ValidationError:
                yield _refused(path, ".attestor")
            else:
                yield from _in_set(nested, path, is_notary=is_notary)


def _in_notary(entry: Attestor, path: str) -> Iterator[str]:
    """Yield problems of a Notary entry, in which only certificates have an effect."""
    certificates = entry.certificates
    if certificates is None or not (certificates.cert or certificates.cert_chain):
        # KYVERNO: upstream crashes (docs/behaviour/images 4.5).
        yield _refused(path, " of type Notary without certificates")


def _in_entry(entry: Attestor, path: str) -> Iterator[str]:
    if entry.certificates is not None:
        certificates = entry.certificates
        if not certificates.cert and not certificates.cert_chain:
            yield _refused(path, ".certificates without cert or certChain")
    elif entry.keys is None and entry.keyless is None:
        yield _refused(path, " without keys, certificates or keyless")
