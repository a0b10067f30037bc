"""Compile the body of a mutate rule: patches, foreach, targets.

Room: compiler. Takes: a decoded rule with ``mutate``. Gives: MutateIR.
Next: compiler/build.py.
Source: docs/behaviour/engine 7.

Two parts are compiled from JSON, as documents with variables: the selectors of a
target, and the whole rule if it patches without foreach, because upstream substitutes
all variables of the rule before it applies the patch.
"""

from collections.abc import Iterable

from msgspec import structs

from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.compiler.rules.context import build_entries
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.ir.rules import (
    MutateForEachIR,
    MutateIR,
    MutateTargetIR,
    PatchIR,
)
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import (
    ForEachMutation,
    Mutation,
    TargetResourceSpec,
)
from kyverno_mp.values.jsonvalue import Json


def build_mutate(rule: Rule, body: Mutation) -> MutateIR:
    """Compile the rule's ``mutate``; raises ExpressionInvalid for invalid queries."""
    targets = body.targets
    return MutateIR(
        patch=_patch_of(rule) if body.foreach is None else None,
        foreach=None if body.foreach is None else _foreach(body.foreach),
        targets=None if targets is None else tuple(_target(each) for each in targets),
    )


def _patch_of(rule: Rule) -> PatchIR:
    # KYVERNO: keys are sorted, which determines the variable of a rule that fails
    # first.
    return PatchIR(parse_document(_sorted(rule.raw())), ("mutate",))


def _sorted(value: Json) -> Json:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_sorted(item) for item in value]
    return value


def _foreach(entries: Iterable[ForEachMutation]) -> tuple[MutateForEachIR, ...]:
    return tuple(
        MutateForEachIR(
            list_query=entry.list,
            is_descending=_is_descending(entry),
            context=build_entries(entry.context),
            preconditions=build_conditions(entry.preconditions),
            patch=_patch(entry),
            foreach=_foreach(entry.foreach or ()),
        )
        for entry in entries
    )


def _is_descending(entry: ForEachMutation) -> bool:
    # KYVERNO: merged lists grow at the front, so the last element is merged first.
    if entry.order is None:
        return entry.patch_strategic_merge is not None
    return entry.order == "Descending"


def _patch(entry: ForEachMutation) -> PatchIR:
    patches: dict[str, Json] = {
        "patchStrategicMerge": _sorted(entry.patch_strategic_merge),
        "patchesJson6902": entry.patches_json6902,
    }
    return PatchIR(parse_document(patches))


def _target(target: TargetResourceSpec) -> MutateTargetIR:
    selected = structs.replace(target, context=(), preconditions=None).raw()
    conditions = target.preconditions
    return MutateTargetIR(
        selected=parse_document(_sorted(selected)),
        context=build_entries(target.context),
        preconditions=None if conditions is None else parse_conditions(conditions),
    )
