"""Compile the PolicyExceptions from a policy, once for all rules that they name.

Room: compiler. Takes: the PolicyExceptions in force, the rules of the policy. Gives:
ExceptionIR records for each rule. Next: compiler/build.py.
Source: docs/behaviour/engine 8.7; limits.COMPILE_EXCEPTIONS_STEPS_MAX.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kyverno_mp.compiler.rules.body import build_controls
from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.compiler.rules.match import build_exception_match
from kyverno_mp.errors import ExpressionInvalid, PolicyInvalid
from kyverno_mp.expr.compile_budget import for_exception, in_turn
from kyverno_mp.ir.rules import ExceptionIR, RuleIR
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.wildcard import matches


class Naming(NamedTuple):
    """An exception, and the positions of the rules that it names."""

    exception: PolicyException
    rules: list[int]


class ExceptionInvalid(Exception):
    """An expression of an exception does not compile; ``rule``: one that it names."""

    def __init__(self, rule: int, error: ExpressionInvalid) -> None:
        """Take the position of the rule, and the error."""
        super().__init__(rule, error)
        self.rule = rule
        self.error = error


def named_rules(
    exceptions: Iterable[PolicyException], key: str, rules: Sequence[RuleIR]
) -> list[Naming]:
    """Return the exceptions that name rules of a policy. ``key``: of the policy."""
    naming = []
    for exception in exceptions:
        names = [
            name
            for target in exception.spec.exceptions
            if target.policy_name == key
            for name in target.rule_names
        ]
        numbers = [
            number
            for number, rule in enumerate(rules if names else ())
            if any(matches(name, rule.name) for name in names)
        ]
        if numbers:
            naming.append(Naming(exception, numbers))
    return naming


def compile_exceptions(
    named: Sequence[Naming], unusable: dict[str, str] | None
) -> Mapping[int, tuple[ExceptionIR, ...]]:
    """Compile each exception with steps of its own; returns those of each rule.

    ``unusable``: as in ``compile_policy``. Raises: ExceptionInvalid, PolicyInvalid.
    """
    compiled: dict[int, ExceptionIR] = {}
    for number in in_turn(
        range(len(named)),
        lambda number: named[number].exception.metadata.namespace,
        lambda number: (_size_of(named[number].exception), number),
    ):
        exception, rules = named[number]
        invalid = next(exception.expiry_problems(), None)
        if invalid is not None and unusable is not None:
            unusable[exception.key] = str(invalid)
            continue
        try:
            with for_exception(exception.metadata.namespace, len(rules)):
                record = build_exception(exception)
        except (ExpressionInvalid, PolicyInvalid) as error:
            if unusable is not None:
                unusable[exception.key] = error.message
            elif isinstance(error, ExpressionInvalid):
                raise ExceptionInvalid(rules[0], error) from error
            else:
                raise
        else:
            # SAFETY: only now, because the block above also charges for the copies.
            compiled[number] = record
    by_rule: dict[int, list[ExceptionIR]] = {}
    for number, record in sorted(compiled.items()):
        for rule in named[number].rules:
            by_rule.setdefault(rule, []).append(record)
    return {rule: tuple(records) for rule, records in by_rule.items()}


def _size_of(exception: PolicyException) -> int:
    return len(msgspec.json.encode(exception))


def build_exception(document: PolicyException) -> ExceptionIR:
    """Compile one exception. Raises: ExpressionInvalid."""
    spec = document.spec
    return ExceptionIR(
        key=document.key,
        match=build_exception_match(spec.match),
        conditions=build_conditions(spec.conditions, of_exception=True),
        pod_security=build_controls(spec.pod_security),
        background=spec.background,
        expires_at_ns=document.expires_at_ns,
    )
