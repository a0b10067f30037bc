"""Declare conditions: ``any`` and ``all`` lists of key, operator, value.

Room: policy. Takes: nothing. Gives: AnyAllConditions (kyverno.io/v1 operators) and
AnyAllConditionsV2. Next: rules, exceptions, clean-up policies;
compiler/rules/conditions.
Source: docs/behaviour/engine 4; docs/behaviour/controllers 1.2 (Condition).
"""

from typing import Literal

from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json

OperatorV2 = Literal[
    "Equals",
    "NotEquals",
    "AnyIn",
    "AllIn",
    "AnyNotIn",
    "AllNotIn",
    "GreaterThanOrEquals",
    "GreaterThan",
    "LessThanOrEquals",
    "LessThan",
    "DurationGreaterThanOrEquals",
    "DurationGreaterThan",
    "DurationLessThanOrEquals",
    "DurationLessThan",
]
Operator = Literal[OperatorV2, "In", "NotIn"]


class Condition(Fields, frozen=True):
    """One condition; a null ``key`` or ``value`` is treated as absent."""

    key: Json = None
    operator: Operator | None = None
    value: Json = None
    message: str = ""


class ConditionV2(Fields, frozen=True):
    """One condition of a v2 kind: without the deprecated operators In and NotIn."""

    key: Json = None
    operator: OperatorV2 | None = None
    value: Json = None
    message: str = ""


class AnyAllConditions(Fields, frozen=True):
    """``any`` and ``all``; None means absent and differs from [] (engine 4.1)."""

    any: tuple[Condition, ...] | None = None
    all: tuple[Condition, ...] | None = None


class AnyAllConditionsV2(Fields, frozen=True):
    """``any`` and ``all`` of kinds in version v2."""

    any: tuple[ConditionV2, ...] | None = None
    all: tuple[ConditionV2, ...] | None = None
