"""Compute which fields of the new object a CEL policy reads.

Room: program. Takes: ValidatingPolicyIR. Gives: Reads of the object, or None for a
policy that may depend on anything else. Next: group.py.
May touch: nothing outside its arguments. Source: program/context/cel_reads.py.

The result is valid for requests of one RequestKind that match only by kind: an
exception, a selector or an audit annotation makes a policy not cacheable.
"""

from collections.abc import Iterator

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.expr.reads import Reads, ReadsUnknown
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.validating_policy import ValidatingBodyIR, ValidatingPolicyIR
from kyverno_mp.program.context.cel_reads import mark_expressions
from kyverno_mp.program.validating_policy.constraints import is_by_kind


def policy_reads(ir: ValidatingPolicyIR) -> Reads | None:
    """Return the fields of the new object that determine the result and its message."""
    if ir.effects != EFFECT_PURE or ir.exceptions or ir.is_json:
        return None
    reads = Reads()
    try:
        for body in ir.bodies:
            if body.copy == EXTRACTED:
                continue  # It reads all of an object; see group.py.
            if body.annotations or not is_by_kind(body.constraints):
                return None
            mark_expressions(_expressions(body), body.variables, reads)
    except ReadsUnknown:
        return None
    return None if reads.is_too_large() else reads


def _expressions(body: ValidatingBodyIR) -> Iterator[Expression]:
    for condition in body.conditions:
        yield condition.expression
    for validation in body.validations:
        yield validation.expression
        if validation.message_expression is not None:
            yield validation.message_expression
