"""Link the policies of ``policies.kyverno.io``: a row for each kind.

Room: webhook. Takes: a LinkContext, a segment of the snapshot. Gives: a Linked
generation, and LINKS. Next: followed, webhook/start.py, which follows each row.
Source: docs/architecture.md 3.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.cel_policies.generating_plan import (
    GeneratingPlanner,
    LinkedGeneratingTrigger,
)
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.cel_sources import cel_source
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.image_policies.scope import Begin
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.plan import CelPlanner
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
    PolicyKind,
)
from kyverno_mp.webhook.attach.followed import Knows, Linked


class LinkContext(NamedTuple):
    """What a worker gives the planners of all kinds."""

    engine: Engine
    background_user: str = ""
    begin: Begin | None = None
    """Starts the verification of the images of a review."""


class _Kind(NamedTuple):
    """The record, the linked policy and the planner of a kind."""

    record: type[Any]
    linked: Callable[[Any], Any]
    planner: Callable[[LinkContext, CelSource[Any], Knows], Any]
    has_groups: bool = False
    """Whether the planner itself is prepared before reviews use it."""


def _link(
    kind: _Kind, context: LinkContext, segment: Segment, knows: Knows
) -> Linked[Any]:
    policies = CelSegment(segment, kind.record)
    source = cel_source(kind.linked, context.engine, policies, policies.record)
    planner = kind.planner(context, source, knows)
    sources = (source, planner) if kind.has_groups else (source,)
    return Linked(policies, sources, planner)


_KINDS: Final[Mapping[PolicyKind, _Kind]] = {
    VALIDATING_POLICY: _Kind(
        ValidatingPolicyIR,
        LinkedValidatingPolicy,
        lambda context, source, knows: CelPlanner(context.engine, source, knows),
        has_groups=True,
    ),
    MUTATING_POLICY: _Kind(
        MutatingPolicyIR,
        LinkedMutatingPolicy,
        lambda context, source, knows: MutatingPlanner(
            context.engine, source, knows, context.background_user
        ),
    ),
    IMAGE_VALIDATING_POLICY: _Kind(
        ImageValidatingPolicyIR,
        LinkedImagePolicy,
        lambda context, source, knows: ImagePlanner(
            context.engine, source, knows, context.begin
        ),
    ),
    GENERATING_POLICY: _Kind(
        GeneratingPolicyIR,
        LinkedGeneratingTrigger,
        lambda context, source, knows: GeneratingPlanner(
            source, knows, context.background_user
        ),
    ),
}
LINKS: Final[
    Mapping[PolicyKind, Callable[[LinkContext, Segment, Knows], Linked[Any]]]
] = {kind: partial(_link, row) for kind, row in _KINDS.items()}
"""What links a generation of each kind; ``knows``: as for FollowedPolicies."""
