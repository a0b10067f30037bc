"""Compile the body of a mutate rule: patches, foreach, targets.

Room: compiler. Takes: a decoded rule as plain data. Gives: MutateIR.
Next: compiler/build.py. May touch: nothing outside its arguments.
Source: docs/behaviour/engine 7.
"""

from kyverno_mp.compiler.context import build_entries
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.ir.rules import (
    MutateForEachIR,
    MutateIR,
    MutateTargetIR,
    PatchIR,
)
from kyverno_mp.values.jsonvalue import Json

_SELECTED = ("apiVersion", "kind", "namespace", "name", "uid", "selector")


def build_mutate(rule: dict[str, Json]) -> MutateIR:
    """Compile ``rule["mutate"]``; raises ExpressionInvalid for an invalid query."""
    raw = rule["mutate"]
    foreach, targets = raw.get("foreach"), raw.get("targets")
    # KYVERNO: the order of sorted keys decides which variable of a rule fails first.
    document = parse_document(_sorted(rule)) if foreach is None else None
    return MutateIR(
        patch=PatchIR(document, ("mutate",)) if document is not None else None,
        foreach=None if foreach is None else tuple(_foreach(each) for each in foreach),
        targets=None if targets is None else tuple(_target(each) for each in targets),
    )


def _sorted(value: Json) -> Json:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_sorted(item) for item in value]
    return value


def _conditions(raw: Json) -> Conditions | None:
    return None if raw is None else parse_conditions(raw, any_all_only=True)


def _foreach(raw: dict[str, Json]) -> MutateForEachIR:
    strategic = raw.get("patchStrategicMerge")
    order = raw.get("order")
    patches: dict[str, Json] = {
        "patchStrategicMerge": _sorted(strategic),
        "patchesJson6902": raw.get("patchesJson6902") or "",
    }
    return MutateForEachIR(
        list_query=raw.get("list") or "",
        # KYVERNO: merged lists grow at the front, so the last element is merged first.
        is_descending=strategic is not None if order is None else order == "Descending",
        context=build_entries(raw.get("context")),
        preconditions=_conditions(raw.get("preconditions")),
        patch=PatchIR(parse_document(patches)),
        foreach=tuple(_foreach(each) for each in raw.get("foreach") or ()),
    )


def _target(raw: dict[str, Json]) -> MutateTargetIR:
    selected = {key: raw[key] for key in _SELECTED if key in raw}
    preconditions = raw.get("preconditions")
    return MutateTargetIR(
        selected=parse_document(_sorted(selected)),
        context=build_entries(raw.get("context")),
        preconditions=(
            None if preconditions is None else parse_conditions(preconditions)
        ),
    )
