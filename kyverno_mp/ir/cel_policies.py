"""Define the records of compiled Mutating-, Generating- and DeletingPolicies.

Room: ir. Takes: written by compiler/cel_kinds/mutating_policy.py and
compiler/cel_kinds/policies.py. Gives: MutatingPolicyIR, GeneratingPolicyIR,
DeletingPolicyIR, read by program/cel_policies. Plain data; no behaviour here. Source:
docs/behaviour/cel 2, 10.
"""

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.ir.admission_policy import ConstraintsIR, MutationIR
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.values.jsonvalue import Json


class TargetsIR(msgspec.Struct, frozen=True, array_like=True):
    """``targetMatchConstraints``, or an ``expression`` that returns the targets."""

    constraints: ConstraintsIR
    expression: Expression | None = None


class MutatingBodyIR(msgspec.Struct, frozen=True, array_like=True):
    """The policy as written, or its autogen copy for controllers of Pods.

    ``copy``: "" or the name of the autogen configuration. Without ``constraints`` every
    object matches.
    """

    copy: str
    constraints: ConstraintsIR | None
    conditions: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    mutations: tuple[MutationIR, ...]
    annotations: tuple[NamedExpressionIR, ...] = ()
    """``auditAnnotations``, by key."""
    target_conditions: tuple[NamedExpressionIR, ...] = ()
    """``targetMatchConditions``: match conditions for existing objects."""


class MutatingPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its autogen copies and exceptions."""

    policy: PolicyIR
    bodies: tuple[MutatingBodyIR, ...]
    exceptions: tuple[CelExceptionIR, ...] = ()
    targets: TargetsIR | None = None
    mutates_existing: bool = False
    """The policy changes existing objects instead of the request's object."""
    reinvokes: bool = False
    """``reinvocationPolicy`` is IfNeeded."""
    effects: int = EFFECT_PURE
    skips_background: bool = True
    """Skip requests from the background pool's service account."""
    replaces_atomics: bool = False
    """``useServerSideApply``: apply configurations may replace atomic values."""

    @property
    def mutates_request(self) -> bool:
        """Whether the policy changes the request's object, not only targets."""
        targets = self.targets
        return targets is None or not (
            targets.constraints.rules or targets.expression is not None
        )


class HoleIR(msgspec.Struct, frozen=True, array_like=True):
    """A place in a document of a template, and the parts of its value.

    ``path``: keys and positions from the root of the document. ``parts``: texts and
    expressions; a single expression gives a value of any type.
    """

    path: tuple[str | int, ...]
    parts: tuple[str | Expression, ...]


class TemplateDocumentIR(msgspec.Struct, frozen=True, array_like=True):
    """One YAML document; ``content`` has null in the places of ``holes``."""

    content: Json
    holes: tuple[HoleIR, ...] = ()


class GenerationIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of ``generate``: an expression, or the documents of a template."""

    expression: Expression | None = None
    documents: tuple[TemplateDocumentIR, ...] = ()


class GeneratingPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its exceptions; without ``constraints`` no object matches."""

    policy: PolicyIR
    constraints: ConstraintsIR | None
    conditions: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    generations: tuple[GenerationIR, ...]
    exceptions: tuple[CelExceptionIR, ...] = ()
    generates_existing: bool = False
    synchronizes: bool = False
    orphans_downstream: bool = False
    """Generated objects are kept when the policy is deleted."""
    effects: int = EFFECT_PURE
    annotations: tuple[NamedExpressionIR, ...] = ()
    """``auditAnnotations``, by key."""
    skips_background: bool = True
    """Requests of the background pool's account trigger nothing."""
    applies_server_side: bool = False
    """``useServerSideApply``: objects are applied, not created and replaced."""


class DeletingPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its exceptions; without ``constraints`` no object matches."""

    policy: PolicyIR
    constraints: ConstraintsIR | None
    conditions: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    schedule: str
    propagation: str = ""
    exceptions: tuple[CelExceptionIR, ...] = ()
    effects: int = EFFECT_PURE


AnyCelPolicyIR = MutatingPolicyIR | GeneratingPolicyIR | DeletingPolicyIR
