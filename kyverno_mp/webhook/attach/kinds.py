"""Link the policies of ``policies.kyverno.io``: one function for each kind.

Room: webhook. Takes: an Engine, a segment of the snapshot. Gives: a Linked generation.
Next: followed. May touch: nothing outside its arguments.
Source: docs/architecture.md 3.
"""

from kyverno_mp.ir.cel_policies import (
    GeneratingPolicyIR,
    MutatingPolicyIR,
)
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
from kyverno_mp.snapshot.cel_segments import (
    CelSegment,
)
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.attach.followed import Knows, Linked


def link_validating(
    engine: Engine, segment: Segment, knows: Knows
) -> Linked[CelPlanner]:
    """Link ValidatingPolicies."""
    policies = CelSegment(segment, ValidatingPolicyIR)
    source = validating_source(engine, policies, policies.record)
    planner = CelPlanner(engine, source, knows)
    return Linked(policies, (source, planner), planner)


def link_mutating(
    engine: Engine, background_user: str, segment: Segment, knows: Knows
) -> Linked[MutatingPlanner]:
    """Link MutatingPolicies."""
    policies = CelSegment(segment, MutatingPolicyIR)
    source = mutating_source(engine, policies, policies.record)
    return Linked(
        policies, (source,), MutatingPlanner(engine, source, knows, background_user)
    )


def link_generating(
    engine: Engine, background_user: str, segment: Segment, knows: Knows
) -> Linked[GeneratingPlanner]:
    """Link the triggers of GeneratingPolicies."""
    policies = CelSegment(segment, GeneratingPolicyIR)
    source = generating_source(engine, policies, policies.record)
    return Linked(
        policies, (source,), GeneratingPlanner(source, knows, background_user)
    )


def link_images(
    engine: Engine, begin: Begin, segment: Segment, knows: Knows
) -> Linked[ImagePlanner]:
    """Link ImageValidatingPolicies; ``begin`` starts the verification of a review."""
    policies = CelSegment(segment, ImageValidatingPolicyIR)
    source = image_source(engine, policies, policies.record)
    return Linked(policies, (source,), ImagePlanner(engine, source, knows, begin))
