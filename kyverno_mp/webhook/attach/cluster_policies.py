"""Follow the ClusterPolicies and Policies of the snapshot; link their hot rules early.

Room: webhook. Takes: the snapshot's files, an Engine. Gives: FollowedRules.
Next: webhook/start.py. May touch: maps files of the runtime folder.
Source: docs/architecture.md 3 (attach, swapped between two requests).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.engine import Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import (
    Changing,
    MutationPlanner,
    link_mutation,
)
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.attach.ahead import LinkingAhead
from kyverno_mp.webhook.attach.followed import Aside, SnapshotFiles, knows_or_waits
from kyverno_mp.webhook.collector import Collector


@dataclass(frozen=True, slots=True)
class LinkedRules:
    """One generation of policies, with its planners."""

    segment: PolicySegment
    source: SegmentSource[LinkedRule]
    mutating: SegmentSource[Changing]
    planner: ValidationPlanner
    mutations: MutationPlanner


class Context(NamedTuple):
    """The objects that linking uses."""

    engine: Engine
    ahead: LinkingAhead
    collector: Collector
    background_user: str | None
    """None without a background pool."""
    reporting: Reporting | None
    """None without a reports pool."""
    forget_bundle_keys: Callable[[], None]
    """Called when the rules are replaced."""


class FollowedRules:
    """The policies, which ``aside.defer``'s thread attaches."""

    def __init__(
        self,
        files: SnapshotFiles,
        context: Context,
        is_whole: Callable[[], bool],
        aside: Aside,
    ) -> None:
        """``is_whole`` returns whether the data that all policies need is attached."""
        self._context = context
        self._is_whole = is_whole
        self._aside = aside
        self._asked: set[str] = set()
        self.follower: Follower[LinkedRules] = files.follow(
            POLICIES, self._link, aside.defer
        )

    def planner(self) -> ValidationPlanner | None:
        """Return the planner of the newest generation, None while data is missing."""
        linked = self.follower.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def mutations(self) -> MutationPlanner | None:
        """Return the planner for mutations, None while data is missing."""
        linked = self.follower.current()
        return linked.mutations if linked is not None and self._is_whole() else None

    def link_rest(self) -> None:
        """Link what was not linked before this generation was served."""
        linked = self.follower.current()
        if linked is not None:
            self._context.ahead.link((linked.source, linked.mutating), None)

    def has(self, key: str) -> bool:
        """Return whether a policy exists in the newest generation."""
        linked = self.follower.current()
        return linked is not None and linked.segment.knows(key)

    def knows(self, key: str) -> bool:
        """Return whether a policy exists, or existed at the last request for it."""
        return knows_or_waits(self.follower, self._aside, self._asked, key)

    def _link(self, segment: Segment, previous: LinkedRules | None) -> LinkedRules:
        context = self._context
        policies = PolicySegment(segment)
        source: SegmentSource[LinkedRule] = SegmentSource(
            policies, partial(_link_rule, context.collector)
        )
        mutating = SegmentSource(policies, link_mutation)
        before = None if previous is None else (previous.source, previous.mutating)
        if context.ahead.link((source, mutating), before):
            self._aside.defer(self.link_rest)
        context.forget_bundle_keys()
        return LinkedRules(
            policies,
            source,
            mutating,
            ValidationPlanner(
                context.engine, source, context.background_user, context.reporting
            ),
            MutationPlanner(context.engine, mutating),
        )


def _link_rule(collector: Collector, policy: PolicyIR, rule: RuleIR) -> LinkedRule:
    linked = link_rule(policy, rule)
    collector.linked_one()
    return linked
