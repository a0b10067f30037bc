"""Find the rules that may apply to a request without reading all rules.

Room: program. Takes: Request, an index of rules (RuleIndex) and a link function.
Gives: PolicyCandidates in policy order. Next: program/engine.
Source: docs/architecture.md 1 (promise 2), 3; keys are chosen by compiler/index.

Every matching rule is found; a found rule may still not match (RuleRef.matches
decides).
PERF: once per (kind, operation), a plan lists the dimensions in use. A request then
costs a few look-ups, regardless of the number of policies for other kinds, namespaces,
names, operations and users.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Generic, Protocol, TypeAlias, TypeVar

from kyverno_mp.ir.index import (
    ANY_OPERATION,
    BY_ABSENT_USER,
    BY_CLUSTER_ROLE,
    BY_GROUP,
    BY_GROUP_PREFIX,
    BY_NAME,
    BY_NAME_PREFIX,
    BY_NAMESPACE,
    BY_NAMESPACE_PREFIX,
    BY_NOTHING,
    BY_ROLE,
    BY_USER,
    BY_USER_PREFIX,
    EXCLUDING,
    SelectorRow,
)
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.limits import (
    CANDIDATE_MEMO_ENTRIES_MAX,
    CANDIDATE_PLANS_MAX,
    LINKED_RULES_MAX,
)
from kyverno_mp.program.matching.kind import KindKey, selector_matches
from kyverno_mp.program.matching.rule_ref import (
    Ahead,
    PolicyCandidates,
    RuleRecords,
    RuleRef,
)
from kyverno_mp.program.matching.subject import criterion_namespace, resource_name
from kyverno_mp.program.relinking import StandIn
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

T = TypeVar("T")

RequestKey: TypeAlias = tuple[str, str, str, str, str]
"""(group, version, kind, subresource, operation)."""
_ValuesOf: TypeAlias = Callable[[Request, dict[str, Json]], Sequence[str]]


class RuleSource(Protocol[T]):
    """The engine's source of rules."""

    def candidates(self, request: Request) -> Sequence[PolicyCandidates[T]]:
        """Return the policies with rules that may apply, in policy order."""


class RuleIndex(RuleRecords, Protocol):
    """Records with their index, e.g. snapshot.policies.PolicySegment."""

    def selectors(self, kind: str) -> Iterable[SelectorRow]:
        """Return the kind selectors that may select ``kind``."""

    def dimensions(self, selector: int, operation: str) -> int:
        """Return a bit mask: bit d is set if dimension d has entries."""

    def find(self, selector: int, operation: str, dimension: int, value: str) -> int:
        """Return a handle for the rules under one key, 0 if there are none."""

    def prefix_lengths(
        self, selector: int, operation: str, dimension: int
    ) -> Sequence[int]:
        """Return the lengths of the values in a prefix dimension."""

    def posting(self, handle: int) -> Sequence[int]:
        """Return the rule references of a handle, ascending."""

    @property
    def policy_count(self) -> int:
        """The number of policies."""

    def digest(self, position: int) -> bytes:
        """Return a digest of everything that linking the policy depends on."""

    def crowded(self) -> Iterable[Sequence[int]]:
        """Return the postings of which one review may need many rules at once."""


_VALUES_OF: dict[int, _ValuesOf] = {
    BY_NAMESPACE: lambda request, resource: (criterion_namespace(request, resource),),
    BY_NAME: lambda _, resource: (resource_name(resource),),
    BY_USER: lambda request, _: (request.username,),
    BY_GROUP: lambda request, _: request.groups,
    BY_ROLE: lambda request, _: request.roles,
    BY_CLUSTER_ROLE: lambda request, _: request.cluster_roles,
    BY_ABSENT_USER: lambda request, _: () if request.has_user_info else ("",),
}


_WHOLE_OF: dict[int, int] = {
    BY_NAMESPACE_PREFIX: BY_NAMESPACE,
    BY_NAME_PREFIX: BY_NAME,
    BY_USER_PREFIX: BY_USER,
    BY_GROUP_PREFIX: BY_GROUP,
}
"""The dimension whose strings provide the prefixes to look up."""


class _Probe:
    """One dimension used by a plan: how to read and look up its values."""

    __slots__ = ("_index", "_keys", "memo", "values_of")

    def __init__(self, index: RuleIndex, dimension: int) -> None:
        self._index = index
        self._keys: list[tuple[int, str, int, Sequence[int]]] = []
        self.memo: dict[str, tuple[int, ...]] = {}
        self.values_of = _VALUES_OF[dimension]

    def add(self, selector: int, operation: str, dimension: int) -> None:
        """Add a dimension that has entries for a selector and an operation."""
        lengths: Sequence[int] = ()
        if dimension in _WHOLE_OF:
            lengths = self._index.prefix_lengths(selector, operation, dimension)
        self._keys.append((selector, operation, dimension, lengths))

    def look_up(self, value: str) -> tuple[int, ...]:
        """Return the handles for ``value``; handles of excluded rules are negative."""
        hits: list[int] = []
        find = self._index.find
        for selector, operation, dimension, lengths in self._keys:
            if dimension in _WHOLE_OF:
                hits += [
                    handle
                    for length in lengths
                    if length <= len(value)
                    and (handle := find(selector, operation, dimension, value[:length]))
                ]
            elif handle := find(selector, operation, dimension, value):
                hits.append(-handle if dimension >= EXCLUDING else handle)
        if len(self.memo) >= CANDIDATE_MEMO_ENTRIES_MAX:
            self.memo.clear()
        handles = self.memo[value] = tuple(hits)
        return handles


class _KindPlan(Generic[T]):
    """Data shared by all requests for one kind and operation."""

    __slots__ = ("base", "base_hits", "merged", "probes")

    def __init__(self, base_hits: tuple[int, ...], probes: list[_Probe]) -> None:
        self.base_hits = base_hits
        self.probes = probes
        self.base: Sequence[PolicyCandidates[T]] | None = None
        self.merged: dict[tuple[int, ...], Sequence[PolicyCandidates[T]]] = {}


class _Policies:
    """Records of policies, decoded once."""

    __slots__ = ("_index", "_known")

    def __init__(self, index: RuleIndex) -> None:
        self._index = index
        self._known: dict[int, PolicyIR] = {}

    def get(self, position: int) -> PolicyIR:
        policy = self._known.get(position)
        if policy is None:
            policy = self._known[position] = self._index.policy(position)
        return policy

    def put(self, position: int, policy: PolicyIR) -> None:
        self._known[position] = policy

    def clear(self) -> None:
        self._known.clear()


class SegmentSource(Generic[T]):
    """Rules of one snapshot segment, decoded and linked when a request needs them."""

    def __init__(self, index: RuleIndex, link: Callable[[PolicyIR, RuleIR], T]) -> None:
        self._index = index
        self._link = link
        self._plans: dict[RequestKey, _KindPlan[T]] = {}
        self._refs: dict[int, RuleRef[T]] = {}
        self._policies = _Policies(index)
        self.kept = 0
        """Number of linked rules that were taken over."""

    def candidates(self, request: Request) -> Sequence[PolicyCandidates[T]]:
        """Return the policies with rules that may apply, in policy order."""
        resource = request.object or request.old_object
        if not resource:
            return ()
        memo_key = (
            request.group,
            request.version,
            request.kind,
            request.subresource,
            request.operation,
        )
        plan = self._plans.get(memo_key) or self._plan(memo_key)
        hits: tuple[int, ...] = ()
        for probe in plan.probes:
            for value in probe.values_of(request, resource):
                handles = probe.memo.get(value)
                if handles is None:
                    handles = probe.look_up(value)
                if handles:
                    hits += handles
        if not hits:
            if plan.base is None:
                plan.base = self._merge(plan.base_hits)
            return plan.base
        merged = plan.merged.get(hits)
        return self._remember(plan, hits) if merged is None else merged

    def take_over(self, previous: "SegmentSource[T]") -> list[T]:
        """Keep the rules that the previous generation has linked and that are equal.

        All rules of a policy stay or none, because they share its record. Return the
        others, which are replaced or deleted.
        """
        linked_refs = previous.linked()
        for at in range(self._index.policy_count if linked_refs else 0):
            refs = linked_refs.pop(self._index.digest(at), ())
            if refs:
                self._policies.put(at, refs[0].policy)
            for ref in refs:
                moved = ref.moved(self._index, self._policies.get, at)
                self._refs[at << 16 | ref.number] = moved
                self.kept += 1
        return [ref.linked for refs in linked_refs.values() for ref in refs]

    def linked(self) -> dict[bytes, Sequence[RuleRef[T]]]:
        """Return the linked rules of each policy, by the digest of its record.

        Stand-ins are left out: the next generation links their rules at once.
        """
        refs: defaultdict[int, list[RuleRef[T]]] = defaultdict(list)
        # Copy first: another thread may be linking at the same time.
        for ref in list(self._refs.values()):
            if ref.is_linked and not isinstance(ref.linked, StandIn):
                refs[ref.position].append(ref)
        return {self._index.digest(at): rules for at, rules in refs.items()}

    def asked(self) -> tuple[RequestKey, ...]:
        """Return the kinds and operations of the requests so far."""
        return tuple(self._plans)

    def ahead(self, previous: "SegmentSource[T] | None") -> Iterator[Ahead]:
        """Yield what to link before this generation is served.

        These are the rules for the kinds of previous requests, and those of which one
        review may need many.
        """
        for key in () if previous is None else previous.asked():
            plan = self._plans.get(key) or self._plan(key)
            plan.base = self._merge(plan.base_hits)
            for candidate in plan.base:
                yield from _unlinked(candidate.rules)
        for posting in self._index.crowded():
            yield from _unlinked(map(self._ref, posting))

    def _plan(self, request_key: RequestKey) -> _KindPlan[T]:
        if len(self._plans) >= CANDIDATE_PLANS_MAX:
            self._plans.clear()
        kind: KindKey = request_key[:4]
        numbers = [
            row.number
            for row in self._index.selectors(kind[2])
            if selector_matches(row.selector, kind)
        ]
        base_hits: list[int] = []
        probes: dict[int, _Probe] = {}
        for number in numbers:
            for operation in dict.fromkeys((request_key[4], ANY_OPERATION)):
                self._plan_selector(number, operation, base_hits, probes)
        plan: _KindPlan[T] = _KindPlan(tuple(base_hits), list(probes.values()))
        self._plans[request_key] = plan
        return plan

    def _plan_selector(
        self,
        number: int,
        operation: str,
        base_hits: list[int],
        probes: dict[int, _Probe],
    ) -> None:
        mask = self._index.dimensions(number, operation)
        for dimension in range(mask.bit_length()):
            if not mask >> dimension & 1:
                continue
            positive = _WHOLE_OF.get(dimension, dimension % EXCLUDING)
            if positive == BY_NOTHING:
                handle = self._index.find(number, operation, dimension, "")
                base_hits.append(-handle if dimension >= EXCLUDING else handle)
                continue
            if positive not in probes:
                probes[positive] = _Probe(self._index, positive)
            probes[positive].add(number, operation, dimension)

    def _remember(
        self, plan: _KindPlan[T], hits: tuple[int, ...]
    ) -> Sequence[PolicyCandidates[T]]:
        if len(plan.merged) >= CANDIDATE_MEMO_ENTRIES_MAX:
            plan.merged.clear()
        merged = plan.merged[hits] = self._merge(plan.base_hits + hits)
        return merged

    def _merge(self, handles: tuple[int, ...]) -> Sequence[PolicyCandidates[T]]:
        included: set[int] = set()
        excluded: set[int] = set()
        for handle in handles:
            (included if handle > 0 else excluded).update(
                self._index.posting(abs(handle))
            )
        if len(self._refs) >= LINKED_RULES_MAX:
            self._refs.clear()
            self._policies.clear()
            self._plans.clear()
        return tuple(
            PolicyCandidates(
                self._policies.get, position, tuple(map(self._ref, references))
            )
            for position, references in groupby(
                sorted(included - excluded), key=lambda reference: reference >> 16
            )
        )

    def _ref(self, reference: int) -> RuleRef[T]:
        ref = self._refs.get(reference)
        if ref is None:
            ref = self._refs[reference] = RuleRef(
                self._index,
                self._policies.get,
                self._link,
                reference >> 16,
                reference & 0xFFFF,
            )
        return ref


def _unlinked(refs: Iterable[RuleRef[T]]) -> Iterator[Ahead]:
    for ref in refs:
        if not ref.is_linked:
            yield Ahead(ref.unlinked_bytes, partial(_link, ref))


def _link(ref: RuleRef[T]) -> None:
    _ = ref.linked
