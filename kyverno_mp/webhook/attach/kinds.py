"""Link the policies of ``policies.kyverno.io``: a function and a row for each.

Room: webhook. Takes: a LinkContext, a segment of the snapshot. Gives: a Linked
generation, and LINKS. Next: followed, webhook/start.py, which follows each row.
May touch: nothing outside its arguments.
Source: docs/architecture.md 3.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlanner
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.cel_sources import (
    generating_source,
    image_source,
    mutating_source,
    validating_source,
)
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.image_policies.scope import Begin
from kyverno_mp.program.validating_policy.plan import CelPlanner
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


def link_validating(
    context: LinkContext, segment: Segment, knows: Knows
) -> Linked[CelPlanner]:
    """Link ValidatingPolicies."""
    policies = CelSegment(segment, ValidatingPolicyIR)
    source = validating_source(context.engine, policies, policies.record)
    planner = CelPlanner(context.engine, source, knows)
    return Linked(policies, (source, planner), planner)


def link_mutating(
    context: LinkContext, segment: Segment, knows: Knows
) -> Linked[MutatingPlanner]:
    """Link MutatingPolicies."""
    policies = CelSegment(segment, MutatingPolicyIR)
    source = mutating_source(context.engine, policies, policies.record)
    return Linked(
        policies,
        (source,),
        MutatingPlanner(context.engine, source, knows, context.background_user),
    )


def link_generating(
    context: LinkContext, segment: Segment, knows: Knows
) -> Linked[GeneratingPlanner]:
    """Link the triggers of GeneratingPolicies."""
    policies = CelSegment(segment, GeneratingPolicyIR)
    source = generating_source(context.engine, policies, policies.record)
    return Linked(
        policies, (source,), GeneratingPlanner(source, knows, context.background_user)
    )


def link_images(
    context: LinkContext, segment: Segment, knows: Knows
) -> Linked[ImagePlanner]:
    """Link ImageValidatingPolicies."""
    policies = CelSegment(segment, ImageValidatingPolicyIR)
    source = image_source(context.engine, policies, policies.record)
    return Linked(
        policies, (source,), ImagePlanner(context.engine, source, knows, context.begin)
    )


LINKS: Final[
    Mapping[PolicyKind, Callable[[LinkContext, Segment, Knows], Linked[Any]]]
] = {
    VALIDATING_POLICY: link_validating,
    MUTATING_POLICY: link_mutating,
    IMAGE_VALIDATING_POLICY: link_images,
    GENERATING_POLICY: link_generating,
}
