"""The variables and functions of an ImageValidatingPolicy on one object.

Room: program. Takes: ImageBodyIR, Facts, PolicyImages. Gives: Body, linked once;
ImageScope for one object; Images, shared by the policies of a review.
Next: evaluate.py. May touch: external systems only through ports.
Source: docs/behaviour/cel 10.4; docs/behaviour/v1.19 5 (required); Kyverno
pkg/image/verification/evaluator/policy.go at v1.18.2, pkg/cel/libs/imageverify/
results.go at v1.19.1.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from kyverno_mp.expr.cel.functions.kyverno.image_verification import (
    Attestor,
    VerifierContext,
)
from kyverno_mp.expr.cel.values import Value
from kyverno_mp.ir.image_policies import ImageBodyIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.cel import COST_MAX, link_validations
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import (
    Dialect,
    Shared,
    link,
    link_variables,
)
from kyverno_mp.program.image_policies.attestors import LinkedAttestor
from kyverno_mp.program.image_policies.dialect import before_images, of_conditions
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.image_policies.references import References
from kyverno_mp.program.image_policies.verification import PolicyTerms, Verification
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scope import Facts, KindScope

Begin: TypeAlias = Callable[[], PolicyImages]
"""Starts the image verification of one review."""


class Images:
    """The images of one review, created when the first policy matches."""

    def __init__(self, begin: Begin | None) -> None:
        self._begin = begin
        self._begun: PolicyImages | None = None
        self.verified: dict[str, bool] = {}
        """The images that policies have tried to verify, and whether one has."""
        self._required: list[tuple[RuleResult, Sequence[str]]] = []

    def begun(self) -> PolicyImages | None:
        """Return the images; None if no registry is available."""
        if self._begun is None and self._begin is not None:
            self._begun = self._begin()
        return self._begun

    def require(self, passed: RuleResult, images: Sequence[str]) -> None:
        """Let a pass depend on the verification of images, by any policy."""
        self._required.append((passed, images))

    def settle(self) -> None:
        """Turn passes into failures. Call it after all policies were evaluated.

        It can be called again: it never turns a failure into a pass.
        """
        for passed, images in tuple(self._required):
            for image in images:
                if self.verified.get(image):
                    continue
                message = (
                    f"image {image} failed signature or attestation verification"
                    if image in self.verified
                    else f"image {image} is not verified: no policy performed a"
                    " signature or attestation check on it"
                )
                passed.status, passed.message = result.FAIL, cut(message)
                break


class Body:
    """One linked copy of a policy."""

    def __init__(
        self, ir: ImageBodyIR, dialect: Dialect, namespace: str, *, pins: bool
    ) -> None:
        self.ir = ir
        self.conditions = link_conditions(ir.conditions, of_conditions(dialect))
        early = before_images(dialect)
        self.extractors = {
            image.name: link(image.expression, early) for image in ir.images
        }
        self.variables = link_variables(ir.variables, dialect)
        self.attestors = [
            LinkedAttestor(attestor, dialect) for attestor in ir.attestors
        ]
        self.validations = link_validations(ir.validations, dialect)
        self.annotations = [*link_variables(ir.annotations, dialect).items()]
        access = ir.access
        self.terms = PolicyTerms(
            References(ir.references, by_tag=pins),
            {attestation.name: attestation for attestation in ir.attestations},
            RegistryAccess(is_tenants=bool(namespace))
            if access is None
            else RegistryAccess(
                access.insecure, access.providers, access.secrets, bool(namespace)
            ),
            namespace,
        )


class ImageScope(KindScope):
    """The variables of one policy, and its functions."""

    __slots__ = ("images", "verification")

    def __init__(
        self,
        facts: Facts,
        shared: Shared,
        body: Body,
        namespace: str,
        images: Images,
    ) -> None:
        """``namespace``: the policy's namespace, "" for a cluster-wide policy."""
        super().__init__(facts, shared, body.variables, COST_MAX, namespace)
        self.images = images
        self.verification = Verification(
            body.terms, images.begun(), facts.runtime, images.verified
        )
        values = self._values
        self._values: tuple[Value, ...] = (
            *values[:4],
            None,
            None,
            {name: name for name in body.terms.attestations},
            *values[5:],
            VerifierContext(self.verification),
        )

    def show(
        self, images: Mapping[str, list[str]], attestors: Sequence[LinkedAttestor]
    ) -> None:
        """Set ``images`` and ``attestors``.

        An attestor's fields are evaluated when a function receives the attestor.
        """
        values = {
            attestor.name: Attestor(attestor.name, partial(attestor.query, self.value))
            for attestor in attestors
        }
        self._values = (*self._values[:4], images, values, *self._values[6:])

    def close(self) -> None:
        """Clear the values. PERF: attestors refer back to the scope."""
        self._values = ()
