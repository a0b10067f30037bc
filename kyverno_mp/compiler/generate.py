"""Compile the body of a generate rule: data, clone, cloneList, foreach.

Room: compiler. Takes: the ``generate`` mapping of a decoded rule. Gives: GenerateIR.
Next: compiler/build.py. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 1.2 (Generation), 5.4.
"""

from typing import Final

from kyverno_mp.compiler.context import build_entries
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import GenerateForEachIR, GenerateIR
from kyverno_mp.values.jsonvalue import Json

_PATTERN: Final = (
    "apiVersion",
    "clone",
    "cloneList",
    "data",
    "kind",
    "name",
    "namespace",
)


def build_generate(raw: dict[str, Json]) -> GenerateIR:
    """Compile the mapping; raises ExpressionInvalid if a list is not a valid query."""
    foreach = raw.get("foreach")
    return GenerateIR(
        pattern=_pattern(raw) if foreach is None else None,
        foreach=None if foreach is None else tuple(_foreach(each) for each in foreach),
        synchronize=raw.get("synchronize") is True,
    )


def _pattern(raw: dict[str, Json]) -> Document:
    return parse_document({key: raw[key] for key in _PATTERN if key in raw})


def _foreach(raw: dict[str, Json]) -> GenerateForEachIR:
    preconditions = raw.get("preconditions")
    return GenerateForEachIR(
        list_query=raw.get("list") or "",
        pattern=_pattern(raw),
        context=build_entries(raw.get("context")),
        preconditions=(
            parse_conditions(preconditions, any_all_only=True)
            if preconditions is not None
            else None
        ),
    )
