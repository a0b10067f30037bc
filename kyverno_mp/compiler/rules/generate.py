"""Compile the body of a generate rule: data, clone, cloneList, foreach.

Room: compiler. Takes: the ``generate`` block of a decoded rule. Gives: GenerateIR.
Next: compiler/build.py.
Source: docs/behaviour/controllers 1.2 (Generation), 5.4.

The description of the target is compiled from its JSON: any of its strings can contain
variables.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.compiler.rules.context import build_entries
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import GenerateForEachIR, GenerateIR
from kyverno_mp.policy.fields.mutation import ForEachGeneration, Generation

_PATTERN: Final = (
    "apiVersion",
    "clone",
    "cloneList",
    "data",
    "kind",
    "name",
    "namespace",
)


def build_generate(body: Generation) -> GenerateIR:
    """Compile the block; raises ExpressionInvalid if a list is not a valid query."""
    return GenerateIR(
        pattern=_pattern(body) if body.foreach is None else None,
        foreach=None if body.foreach is None else _foreach(body.foreach),
        synchronize=body.synchronize,
    )


def _pattern(block: Generation | ForEachGeneration) -> Document:
    raw = block.raw()
    return parse_document({key: raw[key] for key in _PATTERN if key in raw})


def _foreach(entries: Iterable[ForEachGeneration]) -> tuple[GenerateForEachIR, ...]:
    return tuple(
        GenerateForEachIR(
            list_query=entry.list,
            pattern=_pattern(entry),
            context=build_entries(entry.context),
            preconditions=build_conditions(entry.preconditions),
        )
        for entry in entries
    )
