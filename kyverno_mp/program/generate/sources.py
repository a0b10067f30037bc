"""Find the source objects of clones.

Room: program.generate. Takes: a substituted pattern, the cluster's objects. Gives: the
sources. Next: program/generate/pattern.
May touch: the cluster's objects through program/ports only.
Source: docs/behaviour/controllers 5.4; docs/behaviour/lessons 4.2 (a namespaced policy
cannot read outside its namespace).
"""

from collections.abc import Callable, Mapping
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.generate.target import DownstreamTarget
from kyverno_mp.program.matching.filter import charge_pairs, pairs_weight
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.own_namespace import is_outside
from kyverno_mp.program.ports import ObjectQuery
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.kubernetes.selector import (
    check_selector,
    compile_selector,
    labels_of,
    read_selector,
)

NO_SOURCE: Final = "generate.source"
"""The code of a failure that is caused only by missing sources."""
_OBJECT_STEPS: Final = 4
"""Cost of comparing one object with the requested one."""


def find_source(
    scope: RuleContext, downstream_target: DownstreamTarget, target: DownstreamTarget
) -> Json:
    """Return the source of a clone. Raises: ExpressionFailed if it does not exist.

    KYVERNO: the message names the target instead of the source
    (docs/behaviour/controllers 5.4).
    """
    group, _, version = downstream_target.api_version.rpartition("/")
    object_query = ObjectQuery(
        group,
        version,
        downstream_target.kind,
        namespace=downstream_target.namespace,
        name=downstream_target.name,
    )
    for source in _objects(scope, object_query):
        # The port supports wildcards, but a clone has one source with this exact name.
        metadata = metadata_of(source)
        named = (metadata.get("namespace", ""), metadata.get("name"))
        if named == (downstream_target.namespace, downstream_target.name):
            return source
    raise ExpressionFailed(
        NO_SOURCE,
        f"source resource {target} not found: {downstream_target.kind} "
        f'"{downstream_target.name}" not found in namespace'
        f' "{downstream_target.namespace}"',
    )


def list_sources(scope: RuleContext, clone_list: Mapping[str, Json]) -> list[Json]:
    """Return the sources of a cloneList, grouped by kind."""
    namespace = clone_list.get("namespace") or ""
    _keep_within(scope, namespace)
    holds, weight = _selector(clone_list.get("selector") or {})
    sources: list[Json] = []
    for kind in clone_list.get("kinds") or ():
        selector = parse_kind(kind)
        object_query = ObjectQuery(*selector, namespace=namespace)
        for each in _objects(scope, object_query):
            metadata = metadata_of(each)
            if metadata.get("namespace", "") != namespace:
                continue
            actual = labels_of(metadata.get("labels"))
            charge_pairs(scope.runtime.charge, weight, actual.items())
            if holds(actual):
                sources.append(each)
    return sources


def keep_clone_within(scope: RuleContext, downstream_target: DownstreamTarget) -> None:
    """Refuse sources outside the namespace of a namespaced policy."""
    _keep_within(scope, downstream_target.namespace)


def _keep_within(scope: RuleContext, namespace: str) -> None:
    policy_namespace = scope.policy_namespace
    if is_outside(policy_namespace, namespace):
        raise ExpressionFailed(
            "generate.namespace",
            "a namespaced policy cannot clone resources from other namespaces, "
            f"expected: {policy_namespace}, received: {namespace}",
        )


def _objects(scope: RuleContext, object_query: ObjectQuery) -> list[Json]:
    objects = scope.cluster_data.objects
    if objects is None:
        return []
    listed = objects.objects(object_query, scope.runtime.deadline_ns)
    scope.runtime.charge(_OBJECT_STEPS * len(listed))
    return list(listed)


def _selector(
    raw: Mapping[str, Json],
) -> tuple[Callable[[Mapping[str, str]], bool], int]:
    """Return a selector's test and its weight (matching.filter)."""
    labels, terms = read_selector(raw)
    problem = check_selector(labels, terms)
    if problem:
        raise ExpressionFailed("generate.selector", problem)
    return compile_selector(labels, terms), 1 + pairs_weight(labels) + len(terms)
