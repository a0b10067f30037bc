"""The messages between the coordinator of the reports pool and its evaluators.

Room: reports. Takes: objects of one kind; what was found. Gives: Batch, Answer.
Next: reports/scan/dispatch.py sends batches, reports/scan/evaluator.py answers them.
May touch: nothing outside its arguments.
Source: docs/pools.md 1, 4.
"""

from typing import Final

import msgspec

from kyverno_mp.reports.fingerprints import each_fingerprint


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Objects of one kind as JSON. ``generation``: the minimum for the policies."""

    generation: int
    group: str
    version: str
    kind: str
    objects: tuple[bytes, ...]
    plural: str = ""
    documents: tuple[bytes, ...] = ()
    """Admission policies of the API server itself, with their bindings."""
    cel_generation: int = 0
    """Of the policies in CEL, at least; 0: the coordinator has none."""
    mutating_generation: int = 0
    """Of the MutatingPolicies, likewise."""
    only: tuple[bytes, ...] | None = None
    """The keys of the rules to evaluate, all of a policy or none; None = all rules."""
    image_generation: int = 0
    """Of the ImageValidatingPolicies, likewise."""


class Evaluated(msgspec.Struct, frozen=True, array_like=True):
    """What the rules found about one object.

    ``rows``: JSON without times, as reports/fingerprints.py writes it, in the order of
    a report; ``fingerprints`` are in the same order. ``problem``: why
    nothing can be said at the moment of the rules with the keys ``waiting``, without
    any: of all rules. Their rows in the report stay as they are.
    ``exceptions``: of rows that have Events about PolicyExceptions, their keys
    (``ns/name``) by the key of the row.
    """

    fingerprints: bytes = b""
    rows: tuple[bytes, ...] = ()
    problem: str = ""
    exceptions: tuple[tuple[bytes, tuple[str, ...]], ...] = ()
    waiting: tuple[bytes, ...] = ()
    is_outage: bool = False
    """Rows are errors because a registry could not be read; they are tried again."""

    def changed_from(self, before: bytes) -> list[int]:
        """Return which rows are not among those with fingerprints ``before``."""
        known = set(each_fingerprint(before))
        new = enumerate(each_fingerprint(self.fingerprints))
        return [at for at, one in new if one not in known]


NOTHING: Final = Evaluated()


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What was found about the objects of a batch, in their order."""

    generation: int
    objects: tuple[Evaluated, ...]
    image_generation: int = 0
    """Of the ImageValidatingPolicies, 0: they were not asked."""
    counts: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    """What the evaluator counted meanwhile: the name of a family, labels, number."""
    cel_generation: int = 0
    """Of the policies in CEL, 0: they were not asked."""
    mutating_generation: int = 0
    """Of the MutatingPolicies, likewise."""


ENCODER: Final = msgspec.msgpack.Encoder()
BATCH: Final = msgspec.msgpack.Decoder(Batch)
ANSWER: Final = msgspec.msgpack.Decoder(Answer)
