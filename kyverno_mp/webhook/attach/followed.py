"""Follow one kind of policies in the snapshot: its newest generation and its planner.

Room: webhook. Takes: the snapshot's files, a function that links a segment. Gives:
SnapshotFiles, FollowedPolicies, ``link``, which links a kind in CEL. Next:
program/cel_sources.py (what differs between the kinds), webhook/start.py.
May touch: maps files of the runtime folder.
Source: docs/architecture.md 3 (attach, swapped between two requests).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.limits import FINE_GRAINED_KEPT_MAX
from kyverno_mp.program.cel_sources import EXECUTED, PlanContext, cel_source
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import PolicyKind
from kyverno_mp.webhook.attach.ahead import LinkingAhead, Source

T = TypeVar("T")
PlannerT = TypeVar("PlannerT")
Knows = Callable[[str], bool]
Defer = Callable[[Callable[[], None]], None]


class Aside(NamedTuple):
    """The thread that attaches new generations while reviews use the previous ones."""

    defer: Defer
    leave_loop: Callable[[], None]
    """Raises Preempted in the event loop, which must not wait for that thread."""


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files of the snapshot; ``on_refused`` is called with each unusable one."""

    folder: Path
    control: ControlPage
    on_refused: Callable[[SnapshotUnusable], None]

    def follow(
        self,
        name: str,
        wrap: Callable[[Segment, T | None], T],
        defer: Defer | None = None,
    ) -> Follower[T]:
        """Return a follower of the segment ``name``."""
        return Follower(
            self.folder,
            self.control,
            name,
            wrap,
            on_refused=self.on_refused,
            defer=defer,
        )


@dataclass(frozen=True, slots=True)
class Linked(Generic[PlannerT]):
    """One generation of one kind of policies, with its planner."""

    segment: PolicySegment
    sources: tuple[Source, ...]
    """The parts that are linked before reviews use them, in this order."""
    planner: PlannerT


def link(
    kind: PolicyKind, context: PlanContext, segment: Segment, knows: Knows
) -> Linked[Any]:
    """Link a generation of a kind in CEL; ``knows``: as for FollowedPolicies."""
    executed = EXECUTED[kind]
    policies = CelSegment(segment, executed.record)
    source = cel_source(executed.linked, context.engine, policies, policies.record)
    planner = executed.planner(context, source, knows)
    sources = (source, planner) if executed.has_groups else (source,)
    return Linked(policies, sources, planner)


class FollowedPolicies(Generic[PlannerT]):
    """The policies of one kind, which ``aside.defer``'s thread attaches."""

    def __init__(
        self,
        files: SnapshotFiles,
        name: str,
        wrap: Callable[[Segment, Knows], Linked[PlannerT]],
        is_whole: Callable[[], bool],
        aside: Aside,
        ahead: LinkingAhead,
    ) -> None:
        """``is_whole`` returns whether the data that all policies need is attached."""
        self._is_whole = is_whole
        self._aside = aside
        self._ahead = ahead
        self._wrap = wrap
        self._asked: set[str] = set()
        self.follower: Follower[Linked[PlannerT]] = files.follow(
            name, self._link, aside.defer
        )

    def planner(self) -> PlannerT | None:
        """Return the planner of the newest generation, None while data is missing."""
        linked = self.follower.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def link_rest(self) -> None:
        """Link what was not linked before this generation was served."""
        linked = self.follower.current()
        if linked is not None:
            self._ahead.link(linked.sources, None)

    def knows(self, key: str) -> bool:
        """Return whether a policy exists, or existed at the last request for it."""
        return knows_or_waits(self.follower, self._aside, self._asked, key)

    def _link(
        self, segment: Segment, previous: Linked[PlannerT] | None
    ) -> Linked[PlannerT]:
        linked = self._wrap(segment, self.knows)
        before = None if previous is None else previous.sources
        if self._ahead.link(linked.sources, before):
            self._aside.defer(self.link_rest)
        return linked


class _Named(Protocol):
    @property
    def segment(self) -> PolicySegment: ...


def knows_or_waits(
    follower: Follower[Any], aside: Aside, asked: set[str], key: str
) -> bool:
    """Return whether a policy exists, or existed at the last request for it.

    An unknown policy may be part of a generation that is being attached: a review waits
    for it in a thread. Raises: Preempted in the event loop.
    """
    is_known = knows(_segment(follower), asked, key)
    if not is_known and follower.is_behind:
        aside.leave_loop()
        follower.catch_up()
        is_known = knows(_segment(follower), asked, key)
    return is_known


def _segment(follower: Follower[Any]) -> PolicySegment | None:
    linked: _Named | None = follower.current()
    return None if linked is None else linked.segment


def knows(segment: PolicySegment | None, asked: set[str], key: str) -> bool:
    """Return whether a policy exists, or existed at the last request for it.

    A deleted policy can stay registered a little longer, but denies nothing. False for
    a policy that the leader has left out although it may deny.
    """
    if segment is not None:
        if segment.knows(key):
            if len(asked) >= FINE_GRAINED_KEPT_MAX:
                asked.clear()
            asked.add(key)
        elif segment.misses(key):
            return False
    return key in asked
