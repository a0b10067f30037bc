"""Decide which CEL policies a scan evaluates, and whose results it can reproduce.

Room: program. Takes: ValidatingPolicyIR. Gives: is_scanned, is_derived; is_of_objects
for other kinds, too.
Next: reports/scanned_kinds.py; webhook/review/cel_validating.py sends the results that
a scan cannot reproduce.
Source: docs/behaviour/controllers 6.4, 6.6; docs/pools.md 4.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.validating_policy.reads import expressions_of
from kyverno_mp.program.validating_policy.scope import names_any

_CREATIONS: Final = frozenset({"*", "CREATE"})
OF_REQUESTS: Final = frozenset({"request", "oldObject"})
"""A scan invents its request, so expressions on these variables may differ in a
review."""


def is_scanned(ir: ValidatingPolicyIR) -> bool:
    """Return whether scans evaluate the policy.

    A policy in evaluation mode JSON is not scanned: its payloads are not cluster
    objects.
    """
    return ir.policy.background and not ir.is_json


def is_derived(ir: ValidatingPolicyIR) -> bool:
    """Return whether a scan can reproduce every result of a review."""
    return is_scanned(ir) and is_of_objects(ir)


def is_of_objects(ir: ValidatingPolicyIR | MutatingPolicyIR) -> bool:
    """Return whether the results depend on the object, and on nothing of a request."""
    return is_of_creations(body.constraints for body in ir.bodies) and not any(
        names_any(expression, OF_REQUESTS) for expression in expressions_of(ir)
    )


def is_of_creations(constraints: Iterable[ConstraintsIR | None]) -> bool:
    """Return whether each rule matches CREATE, the operation in a scan.

    Requests to a subresource cannot be scanned.
    """
    return all(
        not _CREATIONS.isdisjoint(rule.operations)
        and not any("/" in resource for resource in rule.resources)
        for constraint in constraints
        if constraint is not None
        for rule in constraint.rules
    )
