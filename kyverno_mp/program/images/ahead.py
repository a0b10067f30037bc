"""Query registries for all images of a block in parallel, ahead of time.

Room: program.images. Takes: the images of one block, a BlockReader. Gives: a
BlockReader with cached answers. Next: program/images/rule.
May touch: registries through program/ports.py, in several threads.
Source: docs/images.md (number of parallel calls).

Rules then run image by image. The queries sent ahead are those that the rule sends if
all verifications succeed; the rule sends any other query itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from kyverno_mp.errors import DependencyError, ExpressionFailed, without_frames
from kyverno_mp.program.images.attestors import (
    BlockReader,
    attestation_sets,
    verify_sets,
)
from kyverno_mp.program.images.selection import Image
from kyverno_mp.program.ports import RegistryAccess, ReviewedImages, SignatureQuery
from kyverno_mp.values.jsonvalue import Json

_Answer = TypeVar("_Answer")
_Failure: TypeAlias = ExpressionFailed | DependencyError
WITH_DIGEST: Final = frozenset({"Notary", "SigstoreBundle"})
"""Signature forms whose attestations contain the digest."""


class _Known:
    """Cached answers to queries; other queries are forwarded.

    Errors are cached without tracebacks, and raised as new objects.
    """

    def __init__(self, images: ReviewedImages) -> None:
        self._images = images
        self._digests: dict[str, list[tuple[SignatureQuery, str | _Failure]]] = {}
        self._stated: dict[
            str,
            list[tuple[SignatureQuery, Sequence[dict[str, Json]] | _Failure]],
        ] = {}
        self.keeps = False

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest, which is resolved only once per review anyway."""
        return self._images.digest(image, access, deadline_ns)

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed."""
        return self._once(
            self._digests, self._images.verify, signature_query, deadline_ns
        )

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the attestor's statements about the image."""
        return self._once(
            self._stated, self._images.statements, signature_query, deadline_ns
        )

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts in parallel."""
        self._images.at_once(parts, deadline_ns)

    def _once(
        self,
        answers: dict[str, list[tuple[SignatureQuery, _Answer | _Failure]]],
        ask: Callable[[SignatureQuery, int], _Answer],
        signature_query: SignatureQuery,
        deadline_ns: int,
    ) -> _Answer:
        for query, answer in answers.get(signature_query.image, ()):
            if query != signature_query:
                continue
            if isinstance(answer, ExpressionFailed | DependencyError):
                raise type(answer)(answer.code, answer.message)
            return answer
        if not self.keeps:
            return ask(signature_query, deadline_ns)
        try:
            fresh = ask(signature_query, deadline_ns)
        except (ExpressionFailed, DependencyError) as error:
            failure = without_frames(type(error)(error.code, error.message))
            answers.setdefault(signature_query.image, []).append(
                (signature_query, failure)
            )
            raise
        answers.setdefault(signature_query.image, []).append((signature_query, fresh))
        return fresh


def read_ahead(
    reader: BlockReader, images: Sequence[tuple[Image, bool]]
) -> BlockReader:
    """Return a reader with cached answers to the block's queries for the images.

    Each image is paired with a flag: whether the block verifies it, or only needs the
    digest.
    """
    distinct = {image.text: (image, verifies) for image, verifies in images}
    if len(distinct) < 2:  # noqa: PLR2004 - one image is read in its turn
        return reader
    cached = _Known(reader.images)
    ahead = reader._replace(images=cached)
    cached.keeps = True
    parts = [partial(_read, ahead, *arguments) for arguments in distinct.values()]
    cached.at_once(parts, reader.deadline_ns)
    # A late part must not change the cache while the rule runs.
    cached.keeps = False
    return ahead


def _read(reader: BlockReader, image: Image, verifies: bool) -> None:  # noqa: FBT001 - of a pair
    try:
        if verifies:
            _ask(reader, image)
        if reader.block.mutate_digest and not image.digest:
            reader.images.digest(image.text, reader.access, reader.deadline_ns)
    except Exception:  # noqa: BLE001 - the rule meets it again in the image's turn
        # SAFETY: an error raised here would discard the answers for other images.
        return


def _ask(reader: BlockReader, image: Image) -> None:
    block, reference = reader.block, image.text
    if block.attestors and verify_sets(reader, reference):
        return
    if block.attestors and block.attestations:
        digest = reader.images.digest(reference, reader.access, reader.deadline_ns)
        reference = image.at(digest)
    for attestation in block.attestations:
        kind = attestation.type or attestation.predicate_type
        sets = attestation_sets(block, attestation, "") if kind else ()
        for _, listed in sets:
            for entry in listed.entries[: listed.count or None]:
                if entry.attestor is not None:
                    return
                query = reader.query(entry, reference, kind)
                reader.images.statements(query, reader.deadline_ns)
                if block.type in WITH_DIGEST:
                    reference = image.at(
                        reader.images.digest(
                            image.text, reader.access, reader.deadline_ns
                        )
                    )
