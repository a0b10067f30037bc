"""Find the CEL policies that may apply to a request, and link them when needed.

Room: program. Takes: Request, an index of policies (CelIndex). Gives: CelSource. Next:
program/cel_sources.py, which has the kinds; plan.py; program/cel_policies/plan.py.
Source: docs/architecture.md 1 (promise 2); docs/behaviour/cel 3; keys are chosen by
compiler/cel_kinds/index.py.

Every matching policy is found; a found policy may still not match.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.index import ANY_OPERATION, BY_NAMESPACE, BY_NOTHING, SelectorRow
from kyverno_mp.ir.match import KindIR
from kyverno_mp.limits import (
    CANDIDATE_PLANS_MAX,
    INLINE_LINK_BYTES_MAX,
    LINKED_RULES_MAX,
)
from kyverno_mp.program.admission_policy.match import resource_of
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.matching.rule_ref import Ahead
from kyverno_mp.program.relinking import Relinking, StandIn
from kyverno_mp.program.request import Request

_Asked: TypeAlias = tuple[str, str, str, str, str]
"""(group, resource, subresource, operation, namespace of namespaced policies)."""
LinkedT = TypeVar("LinkedT")


class CelIndex(Protocol):
    """A rule index with its records, e.g. snapshot.cel_segments.CelSegment."""

    def selectors(self, kind: str) -> Iterable[SelectorRow]:
        """Return the selectors that may select a resource."""

    def dimensions(self, selector: int, operation: str) -> int:
        """Return a bit mask: bit d is set if dimension d has entries."""

    def find(self, selector: int, operation: str, dimension: int, value: str) -> int:
        """Return a handle for the policies under one key, 0 if there are none."""

    def posting(self, handle: int) -> Sequence[int]:
        """Return the policy references of a handle, ascending."""

    def bytes_of(self, position: int) -> int:
        """Return the size of the record at a position in policy order."""

    @property
    def policy_count(self) -> int:
        """The number of policies."""

    def digest(self, position: int) -> bytes:
        """Return a digest of everything that linking the policy depends on."""

    def crowded(self) -> Iterable[Sequence[int]]:
        """Return the postings of which one review may need many policies at once."""


class CelSource(Generic[LinkedT]):
    """The policies of one snapshot segment; safe to share between threads."""

    __slots__ = ("_engine", "_found", "_index", "_link_at", "_linked", "_stand_in")

    def __init__(
        self,
        engine: Engine,
        index: CelIndex,
        link: Callable[[int], LinkedT],
        stand_in: Callable[[int, Relinking[LinkedT]], LinkedT],
    ) -> None:
        """``link`` links the policy at a position in policy order.

        ``stand_in`` returns what stands for it if that fails.
        """
        self._engine = engine
        self._index = index
        self._link_at = link
        self._stand_in = stand_in
        self._found: dict[_Asked, tuple[int, ...]] = {}
        self._linked: dict[int, LinkedT] = {}

    def candidates(
        self, request: Request, namespace: str, pace: Pace | None
    ) -> list[LinkedT]:
        """Return the policies that may apply, in policy order.

        ``namespace``: the namespace of namespaced policies, "" for cluster policies.
        Raises: Preempted, as ``pace`` does, if linking takes long.
        """
        linked = self._linked
        positions = self._positions_for(request, namespace)
        return [linked.get(at) or self._link(at, pace) for at in positions]

    def is_linked(self, request: Request, namespace: str) -> bool:
        """Return whether all policies that may apply are linked."""
        return all(at in self._linked for at in self._positions_for(request, namespace))

    def _positions_for(self, request: Request, namespace: str) -> tuple[int, ...]:
        group, _, resource = resource_of(request)
        key = (group, resource, request.subresource, request.operation, namespace)
        positions = self._found.get(key)
        if positions is None:
            if len(self._found) >= CANDIDATE_PLANS_MAX:
                self._found.clear()
            positions = self._found[key] = self._positions(key)
        return positions

    def take_over(self, previous: "CelSource[LinkedT]") -> list[LinkedT]:
        """Keep the policies that the previous generation has linked and that are equal.

        Return the others, which are replaced or deleted.
        """
        linked = previous.linked()
        for at in range(self._index.policy_count if linked else 0):
            policy = linked.pop(self._index.digest(at), None)
            if policy is not None:
                self._linked[at] = policy
        return list(linked.values())

    def ahead(self, previous: "CelSource[LinkedT] | None") -> Iterator[Ahead]:
        """Yield what to link before this generation is served.

        These are the policies for the kinds of previous requests, and those of which
        one review may need many.
        """
        for key in () if previous is None else previous.asked():
            self._found[key] = positions = self._positions(key)
            yield from self._unlinked(positions)
        for posting in self._index.crowded():
            yield from self._unlinked(at >> 16 for at in posting)

    def linked(self) -> dict[bytes, LinkedT]:
        """Return the policies that are linked, by the digest of their record.

        Stand-ins are left out: the next generation links their policies at once.
        """
        # Copy first: another thread may be linking at the same time.
        linked = list(self._linked.items())
        return {
            self._index.digest(at): policy
            for at, policy in linked
            if not isinstance(policy, StandIn)
        }

    def asked(self) -> tuple[_Asked, ...]:
        """Return the kinds and operations of the requests so far."""
        return tuple(self._found)

    def _unlinked(self, positions: Iterable[int]) -> Iterator[Ahead]:
        for at in positions:
            if at not in self._linked:
                yield Ahead(self._index.bytes_of(at), partial(self._link_now, at))

    def _link_now(self, position: int) -> None:
        self._linked[position] = self._linked_or_stand_in(position)

    def _linked_or_stand_in(self, position: int) -> LinkedT:
        try:
            return self._link_at(position)
        except Exception as error:  # noqa: BLE001 - the exit for internal errors
            link = partial(self._link_at, position)
            return self._stand_in(position, Relinking(link, error))

    def _positions(self, key: _Asked) -> tuple[int, ...]:
        group, resource, subresource, operation, namespace = key
        dimension = BY_NAMESPACE if namespace else BY_NOTHING
        index, positions = self._index, set[int]()
        for row in index.selectors(resource):
            if not _selects(row.selector, group, resource, subresource):
                continue
            for either in (operation, ANY_OPERATION):
                if not index.dimensions(row.number, either) >> dimension & 1:
                    continue
                handle = index.find(row.number, either, dimension, namespace)
                if handle:
                    positions.update(at >> 16 for at in index.posting(handle))
        return tuple(sorted(positions))

    def _link(self, position: int, pace: Pace | None) -> LinkedT:
        """Link one policy, in a thread if it is large; one thread links at a time."""
        engine, lock = self._engine, self._engine.linking
        if pace is not None:
            if self._index.bytes_of(position) > INLINE_LINK_BYTES_MAX:
                # Even a full slice is too short to link this policy.
                pace.make_room()
            else:
                pace.next_slice(engine.now_ns())
        if lock is not None and not lock.acquire(blocking=False):
            if pace is not None:
                # The event loop never waits; here it hands the review to a thread.
                pace.make_room()
            lock.acquire()
        try:
            linked = self._linked.get(position)
            if linked is None:
                if len(self._linked) >= LINKED_RULES_MAX:
                    self._linked.clear()
                linked = self._linked[position] = self._linked_or_stand_in(position)
            return linked
        finally:
            if lock is not None:
                lock.release()


def _selects(row: KindIR, group: str, resource: str, subresource: str) -> bool:
    """K8S: ``pods/*`` includes Pods; ``*`` has no subresources, ``*/*`` has all."""
    return (
        row.group in ("*", group)
        and row.kind in ("*", resource)
        and row.subresource in ("*", subresource)
    )
