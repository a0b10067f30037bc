"""Find the objects that a mutate-existing rule changes.

Room: program.mutate. Takes: MutateTargetIR linked once; a scope. Gives: the selected
objects. Next: program/mutate/rule.
May touch: the cluster's objects through program/ports only.
Source: docs/behaviour/engine 7.6; Kyverno pkg/engine/handlers/mutation/load_targets.go.
"""

from collections.abc import Callable, Mapping

from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import MutateTargetIR
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.ports import ObjectQuery, Objects
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.kubernetes.selector import (
    check_selector,
    compile_selector,
    labels_of,
    read_selector,
)


class LinkedTarget:
    """One of a rule's ``targets``."""

    __slots__ = ("_selected", "context", "test")

    def __init__(self, target: MutateTargetIR, namespace: str) -> None:
        self._selected = link_document(target.selected)
        self.context = (
            link_entries(target.context, namespace) if target.context else None
        )
        self.test = (
            link_conditions(target.preconditions)
            if target.preconditions is not None
            else None
        )

    def objects(self, scope: RuleContext, objects: Objects, index: int) -> list[Json]:
        """Return the selected objects. Raises: ExpressionFailed, DependencyError."""
        try:
            selected: Json = self._selected(scope)
        except InputError as error:
            raise ExpressionFailed(
                error.code,
                f"failed to substitute variables in target[{index}]: {error.message}",
            ) from error
        return _found(selected, scope, objects)


def _found(
    selected: Mapping[str, Json], scope: RuleContext, objects: Objects
) -> list[Json]:
    kind = parse_kind(f"{_text(selected, 'apiVersion')}/{_text(selected, 'kind')}")
    object_query = ObjectQuery(
        *kind,
        # KYVERNO: a namespaced policy can change objects only in its own namespace
        # (docs/behaviour/engine 7.6).
        namespace=scope.policy_namespace or _text(selected, "namespace"),
        name=_text(selected, "name"),
    )
    holds = _selector(selected.get("selector"))
    listed = objects.objects(object_query, scope.runtime.deadline_ns)
    if object_query.is_one:
        # KYVERNO: the selector is ignored for an object that is read by name.
        return list(listed)
    return [each for each in listed if holds(_labels(each))]


def _text(selected: Mapping[str, Json], key: str) -> str:
    value = selected.get(key)
    if value is None:
        return ""
    if type(value) is str:
        return value
    raise ExpressionFailed(
        "mutate.target",
        f"json: cannot unmarshal {key} of a target into Go value of type string",
    )


def _labels(resource: Json) -> Mapping[str, str]:
    return labels_of((resource.get("metadata") or {}).get("labels"))


def _selector(raw: Json) -> Callable[[Mapping[str, str]], bool]:
    if type(raw) is not dict:
        return lambda _labels: True
    labels, terms = read_selector(raw)
    problem = check_selector(labels, terms)
    if problem:
        raise ExpressionFailed("mutate.target", problem)
    return compile_selector(labels, terms)
