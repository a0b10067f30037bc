"""Remember what rules said of objects that are equal in all that the rules read.

Room: program. Takes: the first rules of a batch, a Request. Gives: Recall, one for a
batch, and Verdicts, where all batches of a worker keep what they remember. Next:
program/batch.py.
May touch: nothing outside its arguments.
Source: rule_reads.py tells why it is safe; held by tests/fuzz/test_recall_fuzz.py.

Pods of one ReplicaSet differ in their names and in those of a volume, and rules read
neither. The key is the part of the object that is read, in JSON, which tells 1, 1.0 and
true apart, and which matches hold. Only codes and places of failures are kept: what
needed words, could not be judged or ran out of time is judged again, and so is all but
the creation of an object. What is not judged is not charged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from kyverno_mp.expr.reads import Reads, cutter
from kyverno_mp.limits import (
    RECALL_ENTRIES_MAX,
    RECALL_KEY_BYTES_MAX,
    RECALL_REVIEW_BYTES_MAX,
    RECALL_SAID_CHARACTERS_MAX,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.values.jsonvalue import Json

_CREATE: Final = "CREATE"
_VARIABLE: Final = b"{{"
"""In a value it may be a variable, which reads anything (engine.md 3.1)."""
_WORTH_LEAST: Final = 16
_WORTH_OF_EXPRESSIONS: Final = 8
"""PERF: in the time of a static pattern's test. perf/admission.py: a key takes as long
as ten of those, a rule with expressions as long as eight."""
_TRIES: Final = 16
_REST: Final = 7
"""After so many objects in a row that were all different, so many are not even looked
up for each one that is. PERF: a miss makes a review of 200 us take 9 us more."""


class Verdict(NamedTuple):
    """What the first rules of a batch said: see batch.Judgement."""

    codes: bytes
    said: tuple[str, ...]


_Key = tuple[object, bytes, tuple[bool, ...]]
"""(a batch, what its rules read of the object, which of its matches hold)."""


class Verdicts:
    """What is remembered in a process, for all batches; bounded."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[_Key, Verdict] = {}

    def find(self, key: _Key) -> Verdict | None:
        """Return what was said, if it is known."""
        return self._known.get(key)

    def keep(self, key: _Key, verdict: Verdict) -> None:
        """Remember, unless the texts are long."""
        if sum(map(len, verdict.said)) > RECALL_SAID_CHARACTERS_MAX:
            return
        if len(self._known) >= RECALL_ENTRIES_MAX:
            self._known.clear()
        self._known[key] = verdict


class Recall:
    """Keys of requests for the first rules of one batch."""

    __slots__ = ("_cut", "_matchers", "_misses", "_name", "_rest")

    def __init__(
        self, reads: Reads, matchers: Iterable[Callable[[Request], bool]]
    ) -> None:
        self._name = object()
        """In keys, which outlive the batch: by themselves they keep no rules alive."""
        self._cut = cutter(reads)
        self._matchers = tuple(matchers)
        self._misses = 0
        self._rest = 0

    def key(self, request: Request, target: Json) -> _Key | None:
        """Return what decides the verdict; None when nothing may be remembered.

        ``target``: what is judged. An old object can excuse a failure, so a request
        with one is always judged.
        """
        if (
            not 0 < request.size <= RECALL_REVIEW_BYTES_MAX
            or request.operation != _CREATE
            or request.old_object
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
        except Exception:  # noqa: BLE001 - the trouble of one rule, which finds it again
            return None

    def met(self, verdict: Verdict | None) -> None:
        """Take note of whether a key was known."""
        if verdict is not None:
            self._misses = 0
        else:
            self._misses += 1
            if self._misses > _TRIES:
                self._rest = _REST


def is_worth_it(rules: Sequence[LinkedRule]) -> bool:
    """Return whether judging takes longer than finding out that it is known."""
    worth = sum(1 if rule.bare else _WORTH_OF_EXPRESSIONS for rule in rules)
    return worth >= _WORTH_LEAST
