"""Cache verdicts for objects that are equal in all fields that rules read.

Room: program. Takes: the first rules of a batch, a Request. Gives: Recall, one per
batch, and VerdictCache, the cache for all batches of a worker. Next:
program/plans/batch.py.
Source: program/rule_reads.py explains why this is safe; tested by
tests/fuzz/test_recall_fuzz.py.

Pods of one ReplicaSet differ in their names and in the name of a volume, and rules read
neither. The key is the part of the object that rules read, as JSON, which distinguishes
1, 1.0 and true, and the list of matching rules. Only codes and locations of failures
are cached: rules that need a message, could not be evaluated or ran out of time run
again. Only CREATE requests are cached. A cache hit is not charged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from kyverno_mp.expr.reads import Reads, cutter
from kyverno_mp.limits import (
    RECALL_ENTRIES_MAX,
    RECALL_KEY_BYTES_MAX,
    RECALL_MESSAGES_CHARACTERS_MAX,
    RECALL_REVIEW_BYTES_MAX,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.jsonvalue import Json

_CREATE: Final = "CREATE"
_VARIABLE: Final = b"{{"
"""A value that contains this text may be a variable, which can read any field
(behaviour/engine 3.1)."""
_WORTH_LEAST: Final = 16
_WORTH_OF_EXPRESSIONS: Final = 8
"""PERF: in units of one static pattern test. In perf/admission.py, computing a key
takes as long as ten units, and a rule with expressions as long as eight."""
_TRIES: Final = 16
_REST: Final = 7
"""After ``_TRIES`` misses in a row, ``_REST`` objects are evaluated without a look-up
before the next look-up. PERF: a miss adds 9 us to a review of 200 us."""


class CachedVerdict(NamedTuple):
    """The decision of a batch's first rules: see batch.Evaluation."""

    codes: bytes
    messages: tuple[str, ...]


Key = tuple[object, bytes, tuple[bool, ...]]
"""(batch, the fields that its rules read, flags for the match blocks that match)."""


class VerdictCache:
    """The cache of a process, for all batches; bounded."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Key, CachedVerdict] = {}

    def find(self, key: Key) -> CachedVerdict | None:
        """Return the cached verdict, if any."""
        return self._known.get(key)

    def keep(self, key: Key, verdict: CachedVerdict) -> None:
        """Cache the verdict, unless its messages are long."""
        if sum(map(len, verdict.messages)) > RECALL_MESSAGES_CHARACTERS_MAX:
            return
        if len(self._known) >= RECALL_ENTRIES_MAX:
            self._known.clear()
        self._known[key] = verdict


class Recall:
    """Computes cache keys of requests for the first rules of one batch."""

    __slots__ = ("_cut", "_matchers", "_misses", "_name", "_rest")

    def __init__(
        self, reads: Reads, matchers: Iterable[Callable[[Request], bool]]
    ) -> None:
        self._name = object()
        """Part of keys, which outlive the batch; a plain object, so it keeps no rules
        alive."""
        self._cut = cutter(reads)
        self._matchers = tuple(matchers)
        self._misses = 0
        self._rest = 0

    def key(self, request: Request, target: Json) -> Key | None:
        """Return the cache key of the verdict; None if the request is not cacheable.

        ``target``: the object to evaluate. An old object can turn a failure into a
        skip, so such requests are always evaluated.
        """
        if (
            not 0 < request.size <= RECALL_REVIEW_BYTES_MAX
            or request.operation != _CREATE
            or request.old_object
            or not request.namespace_known
            or not target
        ):
            return None
        if self._rest:
            self._rest -= 1
            return None
        try:
            part = orjson.dumps(target if self._cut is None else self._cut(target))
            if len(part) > RECALL_KEY_BYTES_MAX or _VARIABLE in part:
                return None
            return self._name, part, tuple([test(request) for test in self._matchers])
        except Exception:  # noqa: BLE001 - the failure of one rule, which will recur there
            return None

    def count(self, verdict: CachedVerdict | None) -> None:
        """Record whether a key was found."""
        if verdict is not None:
            self._misses = 0
        else:
            self._misses += 1
            if self._misses > _TRIES:
                self._rest = _REST


def is_worth_it(rules: Sequence[LinkedRule]) -> bool:
    """Return whether evaluation takes longer than a cache look-up."""
    worth = sum(1 if rule.bare else _WORTH_OF_EXPRESSIONS for rule in rules)
    return worth >= _WORTH_LEAST
