"""Ask registries about all images of a block at once, before their turn.

Room: program.images. Takes: the images of one block, a BlockReader. Gives: a
BlockReader that knows the answers. Next: program/images/rule.
May touch: registries through program/ports.py, in several threads.
Source: docs/images.md (how many calls at once).

Rules then run as before, image by image: what is asked ahead is what the rule asks if
the answers are good ones. A question that was not asked ahead is asked in its turn.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from kyverno_mp.errors import DependencyError, ExpressionFailed, without_frames
from kyverno_mp.program.images.attestors import BlockReader, verify_sets
from kyverno_mp.program.images.selection import Image
from kyverno_mp.program.ports import RegistryAccess, ReviewedImages, SignatureQuery
from kyverno_mp.values.jsonvalue import Json

_Answer = TypeVar("_Answer")
_Failure: TypeAlias = ExpressionFailed | DependencyError
WITH_DIGEST: Final = frozenset({"Notary", "SigstoreBundle"})
"""Forms whose attestations tell the digest."""


class _Known:
    """The answers to queries; a query that is not known is asked.

    An error is kept without what it has passed through, and raised anew each time.
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
        """Return the digest, which a review resolves once in any case."""
        return self._images.digest(image, access, deadline_ns)

    def verify(self, asked: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed."""
        return self._once(self._digests, self._images.verify, asked, deadline_ns)

    def statements(
        self, asked: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return what the attestor states about the image."""
        return self._once(self._stated, self._images.statements, asked, deadline_ns)

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts."""
        self._images.at_once(parts, deadline_ns)

    def _once(
        self,
        known: dict[str, list[tuple[SignatureQuery, _Answer | _Failure]]],
        ask: Callable[[SignatureQuery, int], _Answer],
        asked: SignatureQuery,
        deadline_ns: int,
    ) -> _Answer:
        for query, answer in known.get(asked.image, ()):
            if query != asked:
                continue
            if isinstance(answer, ExpressionFailed | DependencyError):
                raise type(answer)(answer.code, answer.message)
            return answer
        if not self.keeps:
            return ask(asked, deadline_ns)
        try:
            found = ask(asked, deadline_ns)
        except (ExpressionFailed, DependencyError) as error:
            kept = without_frames(type(error)(error.code, error.message))
            known.setdefault(asked.image, []).append((asked, kept))
            raise
        known.setdefault(asked.image, []).append((asked, found))
        return found


def read_ahead(
    reader: BlockReader, images: Sequence[tuple[Image, bool]]
) -> BlockReader:
    """Return a reader that knows what the block asks about the images.

    Each image comes with whether the block verifies it; it may only need a digest.
    """
    distinct = {image.text: (image, verifies) for image, verifies in images}
    if len(distinct) < 2:  # noqa: PLR2004 - one image is read in its turn
        return reader
    known = _Known(reader.images)
    ahead = reader._replace(images=known)
    known.keeps = True
    parts = [partial(_read, ahead, *one) for one in distinct.values()]
    known.at_once(parts, reader.deadline_ns)
    # A part that is late changes nothing under the hands of the rule.
    known.keeps = False
    return ahead


def _read(reader: BlockReader, image: Image, verifies: bool) -> None:  # noqa: FBT001 - of a pair
    try:
        if verifies:
            _ask(reader, image)
        if reader.block.mutate_digest and not image.digest:
            reader.images.digest(image.text, reader.access, reader.deadline_ns)
    except Exception:  # noqa: BLE001 - the rule meets it again in the image's turn
        # SAFETY: here, it would discard what is known about other images.
        return


def _ask(reader: BlockReader, image: Image) -> None:
    block, text = reader.block, image.text
    if block.attestors and verify_sets(reader, text):
        return
    if block.attestors and block.attestations:
        digest = reader.images.digest(text, reader.access, reader.deadline_ns)
        text = image.at(digest)
    for attestation in block.attestations:
        kind = attestation.type or attestation.predicate_type
        for listed in attestation.attestors if kind else ():
            for entry in listed.entries[: listed.count or None]:
                if entry.attestor is not None:
                    return
                query = reader.query(entry, text, kind)
                reader.images.statements(query, reader.deadline_ns)
                if block.type in WITH_DIGEST:
                    text = image.at(
                        reader.images.digest(
                            image.text, reader.access, reader.deadline_ns
                        )
                    )
