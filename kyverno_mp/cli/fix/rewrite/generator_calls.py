"""Rewrite generate rules as calls of ``generator.Apply``.

Room: cli. Takes: a rule with the data of an object. Gives: a Change whose part is the
call, or NotRewritten with the construct that has no equivalent. Next: policy.py.
Source: docs/behaviour/cel 10.2, 12; docs/behaviour/controllers 5.4, 5.8.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.cli.fix.rewrite.match import filters_of, matched
from kyverno_mp.cli.fix.rewrite.mutate import OPERATIONS, Change, of_home
from kyverno_mp.cli.fix.rewrite.objects import Each, Items, Part, part_of, text_of
from kyverno_mp.cli.fix.rewrite.query_values import Names
from kyverno_mp.cli.fix.rewrite.rules import guarded_conditions, names_of
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.fix.rewrite.variables import with_context
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import Generation
from kyverno_mp.values.jsonvalue import Json

_OBJECT: Final = "object"
_APPLY: Final = "generator.Apply"


def calls_of(copies: Sequence[Rule]) -> list[Change]:
    """Rewrite a rule. Raises: NotRewritten, with the rule's name."""
    try:
        return [_call(rule) for rule in copies]
    except NotRewritten as error:
        raise NotRewritten(f"rule {copies[0].name}: {error}") from error


def generation_of(rule: Rule) -> Generation:
    """Return what a rule generates. Raises: NotRewritten."""
    if rule.generate is None:
        raise NotRewritten("no generate rule")
    return rule.generate


def _call(rule: Rule) -> Change:
    generate = generation_of(rule)
    match = of_home(matched(rule, OPERATIONS, _OBJECT))
    listed = {
        operation
        for one in filters_of(rule.match, "match")
        for operation in one.operations
    }
    if listed - set(OPERATIONS):
        raise NotRewritten("generate for deletions or connections")
    if generate.synchronize and set(match.operations) != set(OPERATIONS):
        raise NotRewritten("operations beside synchronize")
    names = with_context(rule.context, names_of(match.resources))
    conditions = (
        (guarded_conditions(rule.preconditions, names, _OBJECT),)
        if rule.preconditions
        else ()
    )
    arguments = Items((_object(generate, names),))
    namespace = text_of(generate.namespace, names)
    return Change(match, conditions, Each(_APPLY, namespace, arguments), False)


def _object(generate: Generation, names: Names) -> Part:
    if generate.foreach or generate.clone_list.kinds or generate.clone.name:
        raise NotRewritten("generate without data")
    if type(generate.data) is not dict:
        raise NotRewritten("generate without data")
    for source in (generate.api_version, generate.kind):
        if not source or "{{" in source:
            raise NotRewritten("a generated kind that is not constant")
    metadata = generate.data.get("metadata") or {}
    if type(metadata) is not dict:
        raise NotRewritten("metadata that is no map")
    # KYVERNO: the rule names the object, whatever its data says.
    metadata = {
        "name": generate.name,
        **{
            key: value
            for key, value in metadata.items()
            if key not in ("name", "namespace")
        },
    }
    head: Json = {"apiVersion": generate.api_version, "kind": generate.kind}
    head["metadata"] = metadata
    rest = {key: generate.data[key] for key in generate.data if key not in head}
    return part_of({**head, **rest}, names)
