"""Compute what a CEL policy of any kind reads, from its expressions.

Room: program. Takes: the IR of a policy. Gives: ``expressions_of``,
``reads_namespace``; ``policy_reads``: Reads of the object, or None for a policy that
may depend on anything else. Next: group.py, scans.py.
Source: program/context/cel_reads.py.

The result of ``policy_reads`` is valid for requests of one RequestKind that match only
by kind: an exception, a selector or an audit annotation makes a policy not cacheable.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.expr.reads import Reads, ReadsUnknown
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingBodyIR, ValidatingPolicyIR
from kyverno_mp.program.context.cel_reads import mark_expressions
from kyverno_mp.program.validating_policy.constraints import is_by_kind

_NAMESPACE: Final = "namespaceObject"
_NOT_EVALUATED: Final = frozenset(
    {"policy", "constraints", "targets", "target_conditions"}
)
"""Fields without expressions, and those of targets, which the background pool
evaluates."""


def expressions_of(ir: msgspec.Struct) -> Iterator[Expression]:
    """Yield all expressions of a policy, its copies and its exceptions.

    Expressions on targets are not included: the background pool evaluates them.
    """
    waiting: list[Any] = [ir]
    while waiting:
        node = waiting.pop()
        if type(node) is Expression:
            yield node
        elif type(node) is tuple:
            waiting.extend(node)
        elif isinstance(node, msgspec.Struct):
            waiting.extend(
                getattr(node, name)
                for name in node.__struct_fields__
                if name not in _NOT_EVALUATED
            )


def reads_namespace(
    ir: ValidatingPolicyIR | MutatingPolicyIR | ImageValidatingPolicyIR,
) -> bool:
    """Return whether the result may depend on the Namespace or its labels."""
    for body in ir.bodies:
        constraints = body.constraints
        if constraints is not None and constraints.namespace_selector is not None:
            return True
    return any(_NAMESPACE in expression.text for expression in expressions_of(ir))


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
