"""Determine which data a block of conditions depends on.

Room: expr. Takes: Conditions. Gives: whether its outcome is the same for all rules of a
request. Next: program/rule, program/plans/batch, compiler/review_reads.
"""

from typing import Final

from kyverno_mp.expr.conditions.nodes import Condition, Conditions
from kyverno_mp.expr.jmespath.nodes import Literal, Or
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.nodes import Document, Whole

_OPERATION: Final = parse("request.operation")


def reads_operation_only(conditions: Conditions) -> bool:
    """Return whether a block reads nothing but ``request.operation``.

    Such a block, e.g. ``{{ request.operation || 'BACKGROUND' }} NotEquals DELETE``, is
    true for all rules of one request or for none, unless a rule has context entries.
    """
    return all(
        map(_reads_operation_only, (*(conditions.any or ()), *conditions.all)),
    )


def _reads_operation_only(condition: Condition) -> bool:
    return condition.value.is_constant and (
        condition.key.is_constant or is_operation(condition.key)
    )


def is_operation(key: Document) -> bool:
    """Return whether a key is the operation, optionally with a default."""
    template = key.template
    if type(template) is not Whole:
        return False
    node = template.variable.lookup.node
    if type(node) is Or and type(node.right) is Literal:
        node = node.left
    return node == _OPERATION
