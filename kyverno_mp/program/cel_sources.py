"""Provide the linked policies of each kind in CEL, and what stands for unlinked ones.

Room: program. Takes: an Engine, an index of policies, their records. Gives: EXECUTED, a
row for each kind; its CelSource. Next: relinking.py,
program/validating_policy/source.py.

A policy that could not be linked still matches, and is an error. SAFETY: without a
stand-in, the whole review would fail, so the author of one policy could lift the
denials of all others whose failures are ignored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.cel_policies.generating_plan import (
    GeneratingPlanner,
    LinkedGeneratingTrigger,
)
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy, Mutated
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.evaluate import Answer, LinkedImagePolicy
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.image_policies.scope import Begin, Images
from kyverno_mp.program.relinking import RecordT, Relinking, StandIn, decoded
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.evaluate import Body, LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.plan import CelPlanner
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.program.validating_policy.source import CelIndex, CelSource, LinkedT
from kyverno_mp.values.kubernetes.image import ImageSettings
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
    PolicyKind,
)
from kyverno_mp.values.patches.json_diff import Operation

_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_KEPT: Final = frozenset({"bodies", "actions"})


def _bare(record: _StructT) -> _StructT:
    """Return the record without its lists: all expressions are in them."""
    lists = {
        name: ()
        for name in record.__struct_fields__
        if name not in _KEPT and type(getattr(record, name)) is tuple
    }
    bodies = getattr(record, "bodies", None)
    if bodies is not None:
        lists["bodies"] = tuple(map(_bare, bodies))
    return msgspec.structs.replace(record, **lists)


class UnlinkedValidatingPolicy(LinkedValidatingPolicy, StandIn):
    """Stands for a ValidatingPolicy."""

    __slots__ = ("_relinking",)

    def __init__(
        self, ir: ValidatingPolicyIR, relinking: Relinking[LinkedValidatingPolicy]
    ) -> None:
        super().__init__(_bare(ir), full_policy=ir)
        # An error recurs in no scan, and no verdict may be cached.
        self.is_derived, self.reads = False, None
        self._relinking = relinking

    def results(
        self, bodies: Sequence[Body], facts: Facts, shared: Shared
    ) -> list[RuleResult]:
        """Return the results of the linked policy. Raises: as Relinking.linked."""
        if not any(self.may_match(body, facts.request) for body in bodies):
            return []
        linked = self._relinking.linked(facts.runtime)
        return linked.results(linked.bodies_for(facts.request), facts, shared)


class UnlinkedMutatingPolicy(LinkedMutatingPolicy, StandIn):
    """Stands for a MutatingPolicy."""

    __slots__ = ("_relinking",)

    def __init__(
        self, ir: MutatingPolicyIR, relinking: Relinking[LinkedMutatingPolicy]
    ) -> None:
        bare = msgspec.structs.replace(_bare(ir), targets=None)
        super().__init__(bare, full_policy=ir)
        self._relinking = relinking

    def evaluate(self, facts: Facts, shared: Shared) -> Iterator[Mutated]:
        """Yield the verdicts of the linked policy. Raises: as Relinking.linked."""
        if self.may_match(facts.request):
            linked = self._relinking.linked(facts.runtime)
            yield from linked.evaluate(facts, shared)

    def triggers(self, facts: Facts, shared: Shared) -> bool:
        """Return what the linked policy returns. Raises: as Relinking.linked."""
        if not self.may_match(facts.request):
            return False
        return self._relinking.linked(facts.runtime).triggers(facts, shared)


class UnlinkedImagePolicy(LinkedImagePolicy, StandIn):
    """Stands for an ImageValidatingPolicy."""

    __slots__ = ("_relinking",)

    def __init__(
        self, ir: ImageValidatingPolicyIR, relinking: Relinking[LinkedImagePolicy]
    ) -> None:
        super().__init__(_bare(ir), full_policy=ir)
        self._relinking = relinking

    def evaluate(
        self,
        facts: Facts,
        shared: Shared,
        images: Images,
        *,
        of_files: bool = False,
        has_exceptions: bool = True,
    ) -> Iterator[Answer]:
        """Yield the answers of the linked policy. Raises: as Relinking.linked."""
        if self.matches(facts):
            yield from self._relinking.linked(facts.runtime).evaluate(
                facts, shared, images, of_files=of_files, has_exceptions=has_exceptions
            )

    def pins(
        self, facts: Facts, shared: Shared, images: Images, settings: ImageSettings
    ) -> Iterator[tuple[list[Operation], RuleResult | None]]:
        """Yield the digests of the linked policy. Raises: as Relinking.linked."""
        if self.matches(facts):
            linked = self._relinking.linked(facts.runtime)
            yield from linked.pins(facts, shared, images, settings)


class UnlinkedGeneratingTrigger(LinkedGeneratingTrigger, StandIn):
    """Stands for a GeneratingPolicy; its trigger needs no expression."""

    __slots__ = ()

    def __init__(self, ir: GeneratingPolicyIR, _relinking: object) -> None:
        super().__init__(_bare(ir), full_policy=ir)


class PlanContext(NamedTuple):
    """What a worker gives the planners of all kinds."""

    engine: Engine
    background_user: str = ""
    begin: Begin | None = None
    """Starts the verification of the images of a review."""


class Executed(NamedTuple):
    """What executes the policies of a kind in reviews."""

    record: type[Any]
    linked: Callable[[Any], Any]
    stand_in: Callable[[Any, Relinking[Any]], Any]
    planner: Callable[[PlanContext, CelSource[Any], Callable[[str], bool]], Any]
    """Returns the planner; the function tells whether a policy is known."""
    has_groups: bool = False
    """Whether the planner itself is prepared before reviews use it."""


EXECUTED: Final[Mapping[PolicyKind, Executed]] = {
    VALIDATING_POLICY: Executed(
        ValidatingPolicyIR,
        LinkedValidatingPolicy,
        UnlinkedValidatingPolicy,
        lambda context, source, knows: CelPlanner(context.engine, source, knows),
        has_groups=True,
    ),
    MUTATING_POLICY: Executed(
        MutatingPolicyIR,
        LinkedMutatingPolicy,
        UnlinkedMutatingPolicy,
        lambda context, source, knows: MutatingPlanner(
            context.engine, source, knows, context.background_user
        ),
    ),
    IMAGE_VALIDATING_POLICY: Executed(
        ImageValidatingPolicyIR,
        LinkedImagePolicy,
        UnlinkedImagePolicy,
        lambda context, source, knows: ImagePlanner(
            context.engine, source, knows, context.begin
        ),
    ),
    GENERATING_POLICY: Executed(
        GeneratingPolicyIR,
        LinkedGeneratingTrigger,
        UnlinkedGeneratingTrigger,
        lambda context, source, knows: GeneratingPlanner(
            source, knows, context.background_user
        ),
    ),
}
_STAND_INS: Final = {kind.linked: kind.stand_in for kind in EXECUTED.values()}


def cel_source(
    linked: Callable[[RecordT], LinkedT],
    engine: Engine,
    index: CelIndex,
    record: Callable[[int], RecordT],
) -> CelSource[LinkedT]:
    """Return the policies of one kind: the class ``linked`` links their records.

    ``record``: by position in policy order.
    """
    stand_in = _STAND_INS[linked]
    return CelSource(
        engine,
        index,
        lambda at: linked(decoded(record(at))),
        lambda at, relinking: stand_in(record(at), relinking),
    )
