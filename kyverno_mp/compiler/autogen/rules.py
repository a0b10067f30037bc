"""Expand rules on Pods into rules on the controllers that create Pods.

Room: compiler. Takes: a ClusterPolicy or Policy. Gives: its rules in execution order:
the originals, then the autogen-* and autogen-cronjob-* rules of each. Next:
compiler/build.py.
Source: docs/behaviour/engine 2; Kyverno pkg/autogen/v1 at v1.18.2.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kyverno_mp.compiler.autogen.rewrite import GVK_OF, rules_for_controllers
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.policy.documents.cluster_policy import (
    AUTOGEN_ANNOTATION,
    AnyPolicy,
    Rule,
    Spec,
)
from kyverno_mp.policy.fields.match import MatchResources, ResourceDescription
from kyverno_mp.policy.kinds import contains_kind
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.wildcard import contains_wildcard, matches

POD_CONTROLLERS: Final = frozenset(
    {
        "DaemonSet",
        "Deployment",
        "Job",
        "StatefulSet",
        "ReplicaSet",
        "ReplicationController",
        "CronJob",
    }
)
_WORKLOADS: Final = POD_CONTROLLERS | {"Pod"}
_NO_KINDS: Final = frozenset({"all", "none"})
"""Entries of the annotation that are no kinds."""
_PREFIX: Final = "autogen-"


class RuleOfKinds(NamedTuple):
    """A rule, and the kinds of requests for which it exists in validation.

    An empty ``only`` means all kinds except those in ``never``.
    """

    rule: Rule
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def expand(policy: AnyPolicy) -> tuple[Rule, ...]:
    """Return the rules for all controllers; validate rules need ``rules_of_kinds``.

    Cost: 50 microseconds per expanded rule.
    """
    return _expand(policy.spec, _controllers(policy))


def rules_of_kinds(policy: AnyPolicy) -> tuple[RuleOfKinds, ...]:
    """Return the rules for validation, each with the kinds for which it exists.

    KYVERNO: validation computes rules for one kind at a time (docs/behaviour/engine
    2.1). It searches for that kind in the annotation's entries, so ``all`` and
    untrimmed names have no effect here; a generated rule does not exist for other
    kinds, even if one of its filters names them; a rule whose own name begins with
    ``autogen-`` does not exist for controllers. See ``expand_for_kind`` for one kind.
    """
    rules = policy.spec.rules
    named = _controllers(policy)
    pod_controllers = tuple(sorted(named & POD_CONTROLLERS))
    generated = _generated(policy.spec, ",".join(pod_controllers))
    additions = [
        RuleOfKinds(rule, only=_only_kinds(rule, pod_controllers)) for rule in generated
    ]
    # KYVERNO: any other kind in the annotation, such as Pod, has generated rules, too.
    # Beside controllers, admission evaluates the policy only for those of them that its
    # own rules match, because the policy cache is filled from the rules for all kinds.
    other_kinds = {
        kind for kind in named - POD_CONTROLLERS - _NO_KINDS if kind.isalnum()
    }
    if set(pod_controllers) - {"CronJob"}:
        other_kinds = _matched(policy.spec, other_kinds) | (other_kinds & {"Pod"})
    for kind in sorted(other_kinds):
        generated = _generated(policy.spec, kind)
        additions += [RuleOfKinds(rule, only=(kind,)) for rule in generated]
    if not additions:
        return tuple([RuleOfKinds(rule) for rule in rules])
    never = (*pod_controllers, *sorted(other_kinds))
    own_rules = [
        RuleOfKinds(rule, never=never if rule.name.startswith(_PREFIX) else ())
        for rule in rules
    ]
    return (*own_rules, *additions)


def _matched(spec: Spec, kinds: set[str]) -> set[str]:
    """Return the kinds that a rule's match block names, without its other criteria."""
    selectors = [
        parse_kind(selector) for rule in spec.rules for selector in rule.match.kinds()
    ]
    named = {
        selector.kind for selector in selectors if selector.subresource in ("", "*")
    }
    patterns = [pattern for pattern in named if contains_wildcard(pattern)]
    spend(len(patterns) * len(kinds))
    matching = {
        kind for kind in kinds if any(matches(pattern, kind) for pattern in patterns)
    }
    return matching | (named & kinds)


def _only_kinds(rule: Rule, controllers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of a generated rule; () if its filters name no other kinds."""
    named = set(rule.match.kinds())
    if not rule.match.any or named == {GVK_OF["CronJob"]}:
        return ()
    kinds = tuple([kind for kind in controllers if kind != "CronJob"])
    are_named = named <= {GVK_OF[kind] for kind in kinds}
    is_each_named = all(entry.resources.kinds for entry in rule.match.any)
    return () if are_named and is_each_named else kinds


def expand_for_kind(policy: AnyPolicy, kind: str) -> tuple[Rule, ...]:
    """Return the rules for the validation of objects of one ``kind``."""
    if kind not in _controllers(policy):
        return policy.spec.rules
    return _expand(policy.spec, {kind})


def can_autogen(spec: Spec) -> bool:
    """Return whether the rules can be expanded; one rule can prevent it for all."""
    needed = False
    for rule in spec.rules:
        if _forbids_autogen(rule):
            return False
        for block in (rule.match, rule.exclude):
            for resources in _descriptions(block):
                if _is_specific(resources):
                    return False
                needed = needed or not _WORKLOADS.isdisjoint(resources.kinds)
    return needed


def _expand(spec: Spec, controllers: Iterable[str]) -> tuple[Rule, ...]:
    # KYVERNO: upstream joins the names and searches the joined string, so a " CronJob"
    # with a space still counts as CronJob (docs/behaviour/engine 2.1).
    generated = _generated(spec, ",".join(sorted(controllers)))
    if not generated:
        return spec.rules
    originals = [rule for rule in spec.rules if not rule.name.startswith(_PREFIX)]
    return (*originals, *generated)


def _generated(spec: Spec, controllers: str) -> list[Rule]:
    """Return the rules to add for ``controllers``, a comma-separated list."""
    if not controllers or controllers == "none":
        return []
    return [
        generated
        for rule in spec.rules
        if not rule.name.startswith(_PREFIX) and _concerns_pods(rule)
        for generated in rules_for_controllers(rule, controllers)
    ]


def unknown_controllers(policy: AnyPolicy) -> list[str]:
    """Return the annotation's entries that name no controller and no matched kind."""
    named = policy.metadata.annotations.get(AUTOGEN_ANNOTATION)
    if not named:
        return []
    known_names = _WORKLOADS | _NO_KINDS
    candidates = {name for name in named.split(",") if name not in known_names}
    return sorted(candidates - _matched(policy.spec, candidates))


def _controllers(policy: AnyPolicy) -> frozenset[str]:
    if not can_autogen(policy.spec):
        return frozenset({"none"})
    annotation = policy.metadata.annotations.get(AUTOGEN_ANNOTATION)
    if annotation is None:
        return POD_CONTROLLERS
    return frozenset(annotation.split(","))


def _forbids_autogen(rule: Rule) -> bool:
    if "generate" in rule.types():
        return True
    mutate = rule.mutate
    if mutate is None:
        return False
    if mutate.patches_json6902:
        return True
    return any(entry.patches_json6902 for entry in mutate.foreach or ())


def _descriptions(block: MatchResources | None) -> list[ResourceDescription]:
    if block is None:
        return []
    filters = block.any + block.all
    return [block.resources, *(entry.resources for entry in filters)]


def _is_specific(resources: ResourceDescription) -> bool:
    """Return whether the criteria are too specific to apply to a controller."""
    return bool(
        resources.name
        or resources.names
        or resources.selector is not None
        or resources.annotations is not None
        or (len(resources.kinds) > 1 and contains_kind(resources.kinds, "Pod"))
    )


def _concerns_pods(rule: Rule) -> bool:
    excluded = rule.exclude.kinds() if rule.exclude is not None else ()
    if excluded and not contains_kind(excluded, "Pod"):
        return False
    return contains_kind(rule.match.kinds(), "Pod")
