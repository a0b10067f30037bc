"""Require the signatures that attestor sets name: counts, nesting, paths of failures.

Room: program.images. Takes: AttestorSets after substitution. Gives: Failures, or
nothing. Next: program/images/rule.
May touch: registries through program/ports.py.
Source: docs/behaviour/images 1.2, 2.4.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    AttestorSet,
    ImageVerification,
    StaticKeyAttestor,
)
from kyverno_mp.program.ports import RegistryAccess, ReviewedImages, SignatureQuery

_END: Final = "-----END PUBLIC KEY-----"


class Failure(NamedTuple):
    """Why an attestor does not hold; ``is_outage``: nobody could tell."""

    text: str
    is_outage: bool = False


class BlockReader(NamedTuple):
    """What attestors of one block need beside their own fields."""

    block: ImageVerification
    images: ReviewedImages
    deadline_ns: int

    @property
    def access(self) -> RegistryAccess:
        """The block's access to registries."""
        given = self.block.image_registry_credentials
        if given is None:
            return RegistryAccess()
        return RegistryAccess(
            given.allow_insecure_registry, tuple(given.providers), given.secrets
        )

    def query(self, entry: Attestor, image: str) -> SignatureQuery:
        """Return the query for one entry without a nested set."""
        key = certificate = ""
        algorithm = entry.signature_algorithm
        if entry.keys is not None:
            key = _key_of(entry.keys)
            # KYVERNO: the algorithm of the entry has no effect on keys.
            algorithm = entry.keys.signature_algorithm
        elif entry.certificates is not None:
            certificate = entry.certificates.cert
        return SignatureQuery(
            image=image,
            key=key,
            certificate=certificate,
            algorithm=algorithm,
            # KYVERNO: an entry's annotations replace those of the block.
            annotations=entry.annotations or self.block.annotations,
            repository=entry.repository or self.block.repository,
            oci11=self.block.cosign_oci11,
            access=self.access,
            use_cache=self.block.use_cache,
        )


def verify_sets(reader: BlockReader, image: str) -> list[Failure]:
    """Verify all sets of a block; return the failures of the first that fails."""
    for index, listed in enumerate(reader.block.attestors):
        found = _verify_set(reader, listed, image, f".attestors[{index}]")
        if found:
            return found
    return []


def _verify_set(
    reader: BlockReader, listed: AttestorSet, image: str, path: str
) -> list[Failure]:
    entries = list(_expanded(listed))
    wanted = listed.count or len(entries)
    failures: list[Failure] = []
    held = 0
    for index, entry in enumerate(entries):
        found = _verify_entry(reader, entry, image, f"{path}.entries[{index}]")
        failures.extend(found)
        held += not found
        if held >= wanted:
            return []
    if not entries:
        return [Failure(f"{path}: no entries")]
    return failures or [
        Failure(f"{path}: count {wanted} exceeds the {len(entries)} entries")
    ]


def _verify_entry(
    reader: BlockReader, entry: Attestor, image: str, path: str
) -> list[Failure]:
    if entry.attestor is not None:
        try:
            nested = msgspec.convert(entry.attestor, AttestorSet)
        except msgspec.ValidationError as error:
            text = f"failed to unmarshal nested attestor {path}: {error}"
            return [Failure(text)]
        return _verify_set(reader, nested, image, f"{path}.attestor")
    try:
        reader.images.verify(reader.query(entry, image), reader.deadline_ns)
    except (ExpressionFailed, DependencyError) as error:
        text = f"{path}{kind_of(entry)}: {error.message}"
        return [Failure(text, isinstance(error, DependencyError))]
    return []


def kind_of(entry: Attestor) -> str:
    """Return the last part of an entry's path."""
    if entry.keys is not None:
        return ".keys"
    return ".certificates" if entry.certificates is not None else ""


def _key_of(keys: StaticKeyAttestor) -> str:
    if keys.public_keys:
        return keys.public_keys
    if keys.secret is not None:
        return f"k8s://{keys.secret.namespace}/{keys.secret.name}"
    return keys.kms


def _expanded(listed: AttestorSet) -> Iterator[Attestor]:
    """Yield one entry for each key of a text with several.

    KYVERNO: done before counting, so two keys without a count must both have signed.
    """
    for entry in listed.entries:
        texts = split_keys(entry.keys.public_keys) if entry.keys is not None else []
        if entry.keys is None or len(texts) == 1:
            yield entry
            continue
        for text in texts:
            keys = msgspec.structs.replace(entry.keys, public_keys=text)
            yield msgspec.structs.replace(entry, keys=keys)


def split_keys(text: str) -> list[str]:
    """Return one text for each key; a text without a second key stays whole.

    KYVERNO: what follows the last key is dropped only if there are several
    (docs/behaviour/images 1.2).
    """
    parts = text.split(_END)
    if len(parts) <= 2:  # noqa: PLR2004 - one key, and what follows it
        return [text]
    return [part + _END for part in parts[:-1]]
