"""Rewrite mutate rules as a MutatingPolicy.

Room: cli. Takes: a ClusterPolicy whose rules mutate. Gives: the document of a
MutatingPolicy, or NotRewritten with the construct that has no equivalent. Next:
proof.py compares both.
Source: docs/behaviour/engine 2, 7; docs/behaviour/cel 10.1.

A rule on Pods and its copies for controllers become mutations of one policy, each for
its kinds: MutatingPolicies have no autogen for ReplicationControllers.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import yaml

from kyverno_mp.cli.fix.rewrite.conditions import conditions_of
from kyverno_mp.cli.fix.rewrite.jmespath import elements, value_of
from kyverno_mp.cli.fix.rewrite.json_patches import json_patch
from kyverno_mp.cli.fix.rewrite.match import Matched, kinds_clause, matched
from kyverno_mp.cli.fix.rewrite.merge import Element, Merge
from kyverno_mp.cli.fix.rewrite.objects import (
    Choice,
    Each,
    Fields,
    Items,
    Part,
    Sum,
    written,
)
from kyverno_mp.cli.fix.rewrite.query_values import Code, Names, Stream
from kyverno_mp.cli.fix.rewrite.rules import guarded_conditions, names_of
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.cli.fix.rewrite.variables import with_context
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import ForEachMutation, Mutation
from kyverno_mp.values.jsonvalue import Json

OPERATIONS: Final = ("CREATE", "UPDATE")
_OBJECT: Final = "object"
_NO_CHANGE: Final[Part] = Fields("Object", ())
_NO_OPERATION: Final[Part] = Items(())


class Change(NamedTuple):
    """One mutation, and the objects that it changes."""

    matched: Matched
    conditions: tuple[str, ...]
    part: Part
    is_patch: bool


def changes_of(copies: Sequence[Rule]) -> list[Change]:
    """Rewrite a rule and its copies. Raises: NotRewritten, with the rule's name."""
    try:
        return [change for rule in copies for change in _changes(rule)]
    except NotRewritten as error:
        raise NotRewritten(f"rule {copies[0].name}: {error}") from error


def _changes(rule: Rule) -> list[Change]:
    mutate = rule.mutate
    if mutate is None or rule.types() != ("mutate",):
        raise NotRewritten("no mutate rule")
    if mutate.targets is not None:
        raise NotRewritten("mutate with targets")
    # A configuration needs types, which only the built-in kind of a name has.
    match = of_home(matched(rule, OPERATIONS, _OBJECT))
    names = with_context(rule.context, names_of(match.resources))
    conditions = (
        [guarded_conditions(rule.preconditions, names, _OBJECT)]
        if rule.preconditions
        else []
    )
    root = names["request.object"]
    assert isinstance(root, Typed)
    return [
        Change(match, (*conditions, *own), part, is_patch)
        for own, part, is_patch in _parts(mutate, root, names)
    ]


def of_home(match: Matched) -> Matched:
    """Return the match with the built-in kinds for those without a group."""
    own = [
        item._replace(group=item.home) if item.group == "*" else item
        for item in match.resources
    ]
    return match._replace(resources=tuple(dict.fromkeys(own)))


_Own = tuple[tuple[str, ...], Part, bool]
"""Conditions, the part, whether it is a JSON patch."""


def _parts(mutate: Mutation, root: Typed, names: Names) -> list[_Own]:
    if mutate.patch_strategic_merge is not None:
        return _merged(mutate.patch_strategic_merge, root, names, None)
    if mutate.patches_json6902:
        patch = json_patch(_operations(mutate.patches_json6902), root, names)
        return [((), patch, True)]
    entries = mutate.foreach or ()
    return [item for entry in entries for item in _each(entry, root, names)]


def _operations(source: str) -> list[Json]:
    try:
        result = yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise NotRewritten("a JSON patch that is not YAML") from error
    if type(result) is not list or not result:
        raise NotRewritten("an empty JSON patch")
    return result


def _merged(
    patch: Json, root: Typed, names: Names, element: Element | None
) -> list[_Own]:
    if type(patch) is not dict:
        raise NotRewritten("a patch that is no map")
    merge = Merge(root, names, element)
    fields = merge.fields(patch, root, "Object", "")
    if element is not None and not merge.uses_element:
        raise NotRewritten("foreach with a patch for all elements")
    conditions = tuple(merge.conditions)
    result: list[_Own] = (
        [(conditions, Fields("Object", fields), False)] if fields else []
    )
    operations = merge.operations
    if operations:
        part = operations[0] if len(operations) == 1 else Sum(tuple(operations))
        result.append((conditions, part, True))
    return result


def _each(entry: ForEachMutation, root: Typed, names: Names) -> list[_Own]:
    if entry.foreach is not None:
        raise NotRewritten("foreach in foreach")
    if entry.patch_strategic_merge is not None:
        return _each_merged(entry, root, names)
    stream = elements(value_of(entry.list, names))
    if len(stream.loops) != 1 or stream.loops[0].filters:
        raise NotRewritten("foreach on a filtered list")
    if entry.order is not None:
        raise NotRewritten("order in foreach")
    loop = stream.loops[0]
    own = {
        **names,
        "element": stream.value,
        "elementIndex": Code("string(i)", "string"),
    }
    own = dict(with_context(entry.context, own))
    patch = json_patch(_operations(entry.patches_json6902), root, own)
    part = _single(patch)
    names_in = f"i, {loop.name}"
    if entry.preconditions is not None:
        names_in += f", {conditions_of(entry.preconditions.raw(), own)}"
    items = loop.items.default("[]")
    return [((), Each(f"{items}.transformList", names_in, part), True)]


def _single(patch: Part) -> Part:
    """Return the only operation of a list. Raises: NotRewritten."""
    match patch:
        case Items((only,)):
            return only
        case Choice(test, then, other):
            return Choice(test, _single(then), _single(other))
    raise NotRewritten("foreach with several operations")


def _each_merged(entry: ForEachMutation, root: Typed, names: Names) -> list[_Own]:
    value = value_of(entry.list, names)
    if not isinstance(value, Typed | Stream):
        raise NotRewritten("foreach on a value that is no list")
    lists = tuple(
        name
        for name in ("containers", "initContainers", "ephemeralContainers")
        if name in entry.list
    )
    filters = "true"
    if entry.preconditions is not None or entry.context or "?" in entry.list:
        raise NotRewritten("preconditions or context of foreach with a merge")
    return _merged(
        entry.patch_strategic_merge, root, names, Element("element", lists, filters)
    )


def mutations(changes: Sequence[Change], guards: Sequence[str]) -> list[Json]:
    """Return the mutations; ``guards``: what the policy does not test for each."""
    result: list[Json] = []
    for change, guard in zip(changes, guards, strict=True):
        part = change.part
        if guard != "true":
            other = _NO_OPERATION if change.is_patch else _NO_CHANGE
            part = Choice(guard, part, other)
        source = written(part)
        if change.is_patch:
            result.append(
                {"patchType": "JSONPatch", "jsonPatch": {"expression": source}}
            )
        else:
            result.append(
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": source},
                }
            )
    return result


def guards_of(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return the conditions of each change."""
    every = {resource for item in changes for resource in item.matched.resources}
    operations = {item for change in changes for item in change.matched.operations}
    result = []
    for change in changes:
        guards = [change.matched.guard, *change.conditions]
        kinds = {item.kind for item in change.matched.resources}
        if every - set(change.matched.resources):
            guards.insert(0, kinds_clause(kinds, _OBJECT))
        if set(change.matched.operations) != operations:
            listed = ", ".join(f"'{item}'" for item in change.matched.operations)
            guards.insert(0, f"request.operation in [{listed}]")
        listed = ", ".join(f"'{item}'" for item in change.matched.operations)
        needless = ("true", f"request.operation in [{listed}]")
        result.append(tuple(item for item in guards if item not in needless))
    return result
