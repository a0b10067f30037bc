"""Follow the ClusterPolicies and Policies of the snapshot; link their hot rules early.

Room: webhook. Takes: the snapshot's files, an Engine. Gives: FollowedClusterPolicies.
Next: webhook/start.py. May touch: maps files of the runtime folder; the log.
Source: docs/architecture.md 3 (attach, swapped between two requests).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
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
from kyverno_mp.webhook.attach.followed import Defer, SnapshotFiles, knows
from kyverno_mp.webhook.collector import Collector

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkedClusterPolicies:
    """One generation of policies, with its planners."""

    segment: PolicySegment
    source: SegmentSource[LinkedRule]
    mutating: SegmentSource[Changing]
    planner: ValidationPlanner
    mutations: MutationPlanner


class Context(NamedTuple):
    """The objects that linking uses."""

    engine: Engine
    collector: Collector
    background_user: str | None
    """None without a background pool."""
    reporting: Reporting | None
    """None without a reports pool."""
    forget_bundle_keys: Callable[[], None]
    """Called when the rules are replaced."""
    count_error: Callable[[str], None]


class FollowedClusterPolicies:
    """The policies. One thread, the event loop's, uses them; ``defer``'s attaches."""

    def __init__(
        self,
        files: SnapshotFiles,
        context: Context,
        is_whole: Callable[[], bool],
        defer: Defer,
    ) -> None:
        """``is_whole`` returns whether the data that all policies need is attached."""
        self._context = context
        self._is_whole = is_whole
        self._asked: set[str] = set()
        self.follower: Follower[LinkedClusterPolicies] = files.follow(
            POLICIES, self._link, defer
        )

    def planner(self) -> ValidationPlanner | None:
        """Return the planner of the newest generation, None while data is missing."""
        linked = self.follower.current()
        return linked.planner if linked is not None and self._is_whole() else None

    def mutations(self) -> MutationPlanner | None:
        """Return the planner for mutations, None while data is missing."""
        linked = self.follower.current()
        return linked.mutations if linked is not None and self._is_whole() else None

    def knows(self, key: str) -> bool:
        """Return whether a policy exists, or existed at the last request for it."""
        linked = self.follower.current()
        return knows(None if linked is None else linked.segment, self._asked, key)

    def _link(
        self, segment: Segment, previous: LinkedClusterPolicies | None
    ) -> LinkedClusterPolicies:
        context = self._context
        policies = PolicySegment(segment)
        source: SegmentSource[LinkedRule] = SegmentSource(
            policies, partial(_link_rule, context.collector)
        )
        if previous is not None:
            # Release the rules of earlier snapshots, so that consecutive changes do not
            # keep them all.
            context.collector.release()
            self._link_beforehand(source, previous)
            linked = previous.source.linked(), previous.mutating.linked()
            context.collector.note(chain(*linked))
        context.forget_bundle_keys()
        mutating = SegmentSource(policies, link_mutation)
        return LinkedClusterPolicies(
            policies,
            source,
            mutating,
            ValidationPlanner(
                context.engine, source, context.background_user, context.reporting
            ),
            MutationPlanner(context.engine, mutating),
        )

    def _link_beforehand(
        self, source: SegmentSource[LinkedRule], previous: LinkedClusterPolicies
    ) -> None:
        """Link the recently used rules before the swap, so that no request waits.

        If a rule cannot be linked, its policy's failurePolicy decides about the
        requests that need it. It must not prevent other policies from coming into
        force.
        """
        try:
            source.prelink(previous.source.hot_kinds())
        except Exception:  # noqa: BLE001 - logged here; each request reports it again
            self._context.count_error("webhook.defect")
            _LOG.exception("internal error while linking rules")


def _link_rule(collector: Collector, policy: PolicyIR, rule: RuleIR) -> LinkedRule:
    linked = link_rule(policy, rule)
    collector.linked_one()
    return linked
