"""Check the lists of foreach, so that syntax errors do not appear only at run time.

Room: policy. Takes: a Rule and its index. Gives: problems.
Next: compiler/expression_faults.py.
Source: docs/behaviour/engine 6.3, 7.5; docs/behaviour/controllers 5.4.
"""

from collections.abc import Iterator, Sequence

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.scan import find_variables
from kyverno_mp.policy.checks.rules.subject import Problems
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import ForEachGeneration, ForEachMutation
from kyverno_mp.policy.fields.validation import ForEachValidation
from kyverno_mp.policy.problems import Problem

_Entry = ForEachValidation | ForEachMutation | ForEachGeneration


def check_lists(rule: Rule, index: int) -> Problems:
    """Yield the foreach lists that do not parse."""
    bodies: Sequence[tuple[str, Sequence[_Entry]]] = (
        ("validate", (rule.validate and rule.validate.foreach) or ()),
        ("mutate", (rule.mutate and rule.mutate.foreach) or ()),
        ("generate", (rule.generate and rule.generate.foreach) or ()),
    )
    for body, entries in bodies:
        for path, expression in _lists(entries, f"spec.rules[{index}].{body}"):
            if not expression or find_variables(expression):
                continue
            try:
                parse(expression)
            except ExpressionInvalid as error:
                yield Problem(
                    "policy.expression",
                    path,
                    rule.name,
                    error.message,
                    column=error.where.column,
                )


def _lists(entries: Sequence[_Entry], path: str) -> Iterator[tuple[str, str]]:
    for position, entry in enumerate(entries):
        entry_path = f"{path}.foreach[{position}]"
        yield f"{entry_path}.list", entry.list
        if not isinstance(entry, ForEachGeneration):
            yield from _lists(entry.foreach or (), entry_path)
