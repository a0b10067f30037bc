"""Cache the patch for objects that are equal in all fields that mutate rules read.

Room: program. Takes: the policies of a plan, a Request, the outcome of running them.
Gives: MutationRecall, one per plan, and MutationCache, the cache of a worker.
Next: program/plans/mutation_plan.
Source: mutation_reads.py computes the fields; tested by
tests/fuzz/test_mutation_recall_fuzz.py.

Pods of one ReplicaSet differ in their names and in the name of a volume, and rules read
neither. When a key occurs for the second time, the rules run again, only on the fields
that they read, with unknown content in all other fields (expr/reads.py: Strangers). If
the patch contains no unknown content, and has the same effect on the object as the
original patch, it is valid for every object with this key. Rules that end in an error
are never cached. A cache hit is not charged.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import orjson

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.reads import Strangers, cutter
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    RECALL_KEY_BYTES_MAX,
    RECALL_MUTATION_STEPS_MAX,
    RECALL_MUTATIONS_MAX,
    RECALL_PATCH_BYTES_MAX,
    RECALL_READS_STEPS_MAX,
    RECALL_REVIEW_BYTES_MAX,
)
from kyverno_mp.program import result
from kyverno_mp.program.context.request_root import request_root
from kyverno_mp.program.mutate.rule import LinkedMutation, mutated_text
from kyverno_mp.program.mutation import Mutations, PolicyMutations
from kyverno_mp.program.recall.mutation_reads import MutationReads, Path, mutation_reads
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_diff import Operation, diff
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.values.patches.merge_keys import Shape, shape_of
from kyverno_mp.values.spending import Spender

_CREATE: Final = "CREATE"
_OPENING: Final = "{{"
_VARIABLE: Final = _OPENING.encode()
_WORTH_LEAST: Final = 3
_WORTH_OF_LOOP: Final = 3
"""PERF: in units of one small strategic merge, which takes as long as computing a
key."""
_TRIES: Final = 16
_REST: Final = 7
"""As in verdicts.py: after many misses in a row, only every eighth object is looked
up."""
_STRANGER: Final = orjson.dumps(Strangers.WORD)[1:-1]

MutationKey: TypeAlias = tuple[object, bytes, tuple[str | None, ...], tuple[bool, ...]]
"""(plan, fields of the object that its rules read, fields of the review, flags for the
rules that match)."""
_Row: TypeAlias = tuple[str, str, str | None]
"""(rule, status, message); message None: the standard text for a change."""


class CachedMutation(NamedTuple):
    """The results of each policy, and the patch."""

    rows: tuple[tuple[PolicyIR, tuple[_Row, ...]], ...]
    patch: list[Operation]

    def outcome(self, request: Request) -> Mutations:
        """Return the outcome of running the rules on this request."""
        default_message = mutated_text(request.object)
        responses = [
            PolicyResponse(
                policy,
                [
                    RuleResult(
                        name, result.MUTATION, status, message or default_message
                    )
                    for name, status, message in rows
                ],
            )
            for policy, rows in self.rows
        ]
        return Mutations(responses, self.patch)


class MutationCache:
    """The cache of a process, for all plans; bounded."""

    __slots__ = ("_known", "_met")

    def __init__(self) -> None:
        self._known: dict[MutationKey, CachedMutation] = {}
        self._met: dict[MutationKey, bool] = {}
        """Keys that occurred once; False: their outcome cannot be cached."""

    def find(self, key: MutationKey) -> CachedMutation | None:
        """Return the cached outcome, if any."""
        return self._known.get(key)

    def is_met(self, key: MutationKey) -> bool:
        """Return whether the key occurred before and its outcome may be cached."""
        has_occurred = self._met.get(key)
        if has_occurred is None:
            if len(self._met) >= RECALL_MUTATIONS_MAX:
                self._met.clear()
            self._met[key] = True
        return has_occurred is True

    def keep(self, key: MutationKey, cached_mutation: CachedMutation | None) -> None:
        """Cache the outcome; None: record that it cannot be cached."""
        if cached_mutation is None:
            self._met[key] = False
            return
        if len(self._known) >= RECALL_MUTATIONS_MAX:
            self._known.clear()
        self._known[key] = cached_mutation


class MutationRecall:
    """Computes cache keys and cacheable outcomes for the rules of one plan."""

    __slots__ = (
        "_cut",
        "_matchers",
        "_misses",
        "_name",
        "_policies",
        "_reads",
        "_rest",
        "_shape",
    )

    def __init__(
        self, policies: Sequence[PolicyMutations], reads: MutationReads, shape: Shape
    ) -> None:
        self._name = object()
        """Part of keys, which outlive the plan; a plain object, so it keeps no rules
        alive."""
        self._policies = policies
        self._reads = reads
        self._shape = shape
        self._cut = cutter(reads.object)
        self._matchers = tuple([rule.matches for rule in _rules(policies)])
        self._misses = 0
        self._rest = 0

    def key(self, request: Request) -> MutationKey | None:
        """Return the cache key of the outcome; None if the request is not cacheable."""
        target = request.object
        if (
            not 0 < request.size <= RECALL_REVIEW_BYTES_MAX
            or request.operation != _CREATE
            or request.old_object
            or not target
            or not request.namespace_known
            or request.variables
            or request.rule_variables
        ):
            return None
        if self._rest:
            self._rest -= 1
            return None
        try:
            if _shape_of(target) is not self._shape:
                return None
            part = orjson.dumps(target if self._cut is None else self._cut(target))
            if len(part) > RECALL_KEY_BYTES_MAX or _VARIABLE in part:
                return None
            strings = _texts_at(request, self._reads.request)
            if strings is None:
                return None
            matched = tuple([test(request) for test in self._matchers])
        except Exception:  # noqa: BLE001 - the failure of one rule, which will recur there
            return None
        return self._name, part, strings, matched

    def count(self, cached_mutation: CachedMutation | None) -> None:
        """Record whether a key was found."""
        if cached_mutation is not None:
            self._misses = 0
        else:
            self._misses += 1
            if self._misses > _TRIES:
                self._rest = _REST

    def learned(
        self, key: MutationKey, request: Request, done: Mutations
    ) -> CachedMutation | None:
        """Return the outcome for every request with this key; None if it is unknown.

        ``done``: the outcome of this request.
        """
        if done.refusal or done.left_out or done.reached is None:
            return None
        try:
            cached = self._found(key, request, done.reached[1])
            if cached is None:
                return None
            responses = cached.outcome(request).responses
            return cached if _rows(responses) == _rows(done.responses) else None
        except Exception:  # noqa: BLE001 - the review has its answer, which stays
            return None

    def _found(
        self, key: MutationKey, request: Request, reached: Json
    ) -> CachedMutation | None:
        """Return the outcome from the read fields alone, if it fits this request."""
        _, part, _, matched = key
        spend = _Bounded(RECALL_MUTATION_STEPS_MAX)
        cached = self._run(request, orjson.loads(part), matched, spend)
        if cached is None:
            return None
        encoded = orjson.dumps(cached.patch)
        if len(encoded) > RECALL_PATCH_BYTES_MAX or _STRANGER in encoded:
            return None
        after = apply_patch(request.object, cached.patch, spend, strict=True)
        # Compared as text, because in Python 1 equals 1.0 and true.
        return cached if _text_of(after) == _text_of(reached) else None

    def _run(
        self, request: Request, part: Json, matched: Sequence[bool], spend: Spender
    ) -> CachedMutation | None:
        """Run the rules, with linked patches, on the fields that they read."""
        before = Strangers().put_into(self._reads.object, part)
        alike = copy_of(request)
        alike.object = before
        alike.review_request = {**(request.review_request or {}), "object": before}
        frame = request_root(alike)
        matches, resource = iter(matched), before
        by_policy = []
        for policy, rules in self._policies:
            rows: list[_Row] = []
            is_over = False
            for rule in _rules([(policy, rules)]):
                if not next(matches) or is_over:
                    continue
                patched = rule.run_linked(frame, resource, spend)
                if patched is None or patched.status == result.ERROR:
                    return None
                changed = patched.status == result.PASS
                message = None if changed else patched.message
                rows.append((rule.ir.name, patched.status, message))
                resource = patched.resource
                is_over = changed and policy.apply_rules == "One"
            if rows:
                by_policy.append((policy, tuple(rows)))
        return CachedMutation(tuple(by_policy), diff(before, resource, spend))


class _Bounded:
    """A budget for work that no review waits for: marking fields, repeated runs."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def charge(self, steps: int, /) -> None:
        """Charge steps. Raises: BudgetExceeded."""
        self._left -= steps
        if self._left < 0:
            raise BudgetExceeded("recall.steps", "too much to run again")

    def charge_bytes(self, count: int, /) -> None:
        """Charge bytes. Raises: BudgetExceeded."""
        self.charge(count >> 8)


def recall_of(
    policies: Sequence[PolicyMutations], target: dict[str, Json]
) -> MutationRecall | None:
    """Return the recall for objects of the target's kind.

    Return None if the rules read unknown fields, are as fast as a look-up, or are too
    large.
    """
    shape = _shape_of(target)
    if shape is None or not _is_worth_it(policies):
        return None
    reads = mutation_reads(policies, shape, _Bounded(RECALL_READS_STEPS_MAX))
    return None if reads is None else MutationRecall(policies, reads, shape)


def _is_worth_it(policies: Sequence[PolicyMutations]) -> bool:
    worth = 0
    for rule in _rules(policies):
        mutate = rule.ir.mutate
        loops = mutate is not None and mutate.foreach is not None
        worth += _WORTH_OF_LOOP if loops else 1
    return worth >= _WORTH_LEAST


def _rules(policies: Sequence[PolicyMutations]) -> list[LinkedMutation]:
    return [rule for _, rules in policies for rule in rules if not rule.is_existing]


def _shape_of(target: dict[str, Json]) -> Shape | None:
    api_version, kind = target.get("apiVersion"), target.get("kind")
    if type(api_version) is not str or type(kind) is not str:
        return None
    return shape_of(api_version, kind)


def _texts_at(request: Request, paths: Sequence[Path]) -> tuple[str | None, ...] | None:
    """Return the strings at paths of the review; None if any value is not a string."""
    strings: list[str | None] = []
    for path in paths:
        value: Json = request.review_request
        for name in path:
            value = value.get(name) if type(value) is dict else None
        if value is not None and (type(value) is not str or _OPENING in value):
            return None
        strings.append(value)
    return tuple(strings)


def _rows(responses: Sequence[PolicyResponse]) -> list[tuple[str, list[RuleResult]]]:
    return [(response.policy.key, response.results) for response in responses]


def _text_of(resource: Json) -> bytes:
    return orjson.dumps(resource, option=orjson.OPT_SORT_KEYS)
