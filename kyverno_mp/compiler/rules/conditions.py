"""Compile the condition blocks that the policy kinds declare with ``any`` and ``all``.

Room: compiler. Takes: a document's AnyAllConditions. Gives: Conditions. Next: body,
mutate, generate, build, cleanup. Blocks that the CRD leaves free-form (preconditions of
a rule or target, ``deny.conditions``) have no records; expr/conditions/parse reads
their JSON.
Source: docs/behaviour/engine 4.1, 8.7.
"""

from collections.abc import Iterable
from typing import TypeAlias

from kyverno_mp.expr.conditions.nodes import Condition, Conditions
from kyverno_mp.expr.conditions.parse import parse_side
from kyverno_mp.policy.fields import conditions as fields

_Block: TypeAlias = fields.AnyAllConditions | fields.AnyAllConditionsV2
_Entries: TypeAlias = Iterable[fields.Condition | fields.ConditionV2]


def build_conditions(
    block: _Block | None, *, of_exception: bool = False
) -> Conditions | None:
    """Compile a block; return None if there is no block.

    ``of_exception``: the conditions of an exception, which differ in their order and in
    the meaning of ``any: []``.

    Raises: ExpressionInvalid if the conditions are nested too deeply.
    """
    if block is None:
        return None
    return Conditions(
        any=None if block.any is None else _built(block.any),
        all=_built(block.all or ()),
        of_exception=of_exception,
    )


def _built(entries: _Entries) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            key=parse_side(entry.key),
            operator=entry.operator or "",
            value=parse_side(entry.value),
            message=entry.message,
        )
        for entry in entries
    )
