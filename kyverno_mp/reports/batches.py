"""Define the messages between the coordinator of the reports pool and its evaluators.

Room: reports. Takes: objects of one kind; results. Gives: Batch, Answer. Next:
reports/scan/dispatch.py sends batches, reports/scan/evaluator.py answers them.
Source: docs/pools.md 1, 4.
"""

from collections.abc import Mapping
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
    """The API server's own admission policies, with their bindings."""
    cel_generations: Mapping[str, int] = {}
    """Minimum generations of the policies in CEL, by segment."""
    only: tuple[bytes, ...] | None = None
    """The keys of the rules to evaluate, always all rules of a policy; None = all
    rules."""


class Evaluated(msgspec.Struct, frozen=True, array_like=True):
    """The results of the rules for one object.

    ``rows``: JSON without times, as reports/fingerprints.py writes it, in the order of
    a report; ``fingerprints`` are in the same order. ``problem``: why the rules with
    the keys ``waiting`` (or all rules, if it is empty) cannot be evaluated now. Their
    rows in the report do not change. ``exceptions``: for rows that cause Events about
    PolicyExceptions, the keys of these exceptions (``ns/name``) by the key of the row.
    """

    fingerprints: bytes = b""
    rows: tuple[bytes, ...] = ()
    problem: str = ""
    exceptions: tuple[tuple[bytes, tuple[str, ...]], ...] = ()
    waiting: tuple[bytes, ...] = ()
    is_outage: bool = False
    """Whether rows are errors because a registry or the API server did not answer; they
    are retried."""

    def changed_from(self, before: bytes) -> list[int]:
        """Return the positions of rows whose fingerprints are not in ``before``."""
        fingerprints_before = set(each_fingerprint(before))
        new = enumerate(each_fingerprint(self.fingerprints))
        return [at for at, fingerprint in new if fingerprint not in fingerprints_before]


NOTHING: Final = Evaluated()


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The results for the objects of a batch, in their order."""

    generation: int
    objects: tuple[Evaluated, ...]
    cel_generations: Mapping[str, int] = {}
    """Generations of the policies in CEL that were evaluated, by segment."""
    counts: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    """Counts that the evaluator collected: the name of a family, labels, number."""


ENCODER: Final = msgspec.msgpack.Encoder()
BATCH: Final = msgspec.msgpack.Decoder(Batch)
ANSWER: Final = msgspec.msgpack.Decoder(Answer)
