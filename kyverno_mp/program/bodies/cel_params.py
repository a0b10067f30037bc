"""Fetch the parameters of a CEL rule: ``paramKind`` with ``paramRef``.

Room: program. Takes: CelParamsIR, Request, ClusterData. Gives: the parameter objects.
Next: program/bodies/cel.py. May touch: the cluster through program/ports only.
Source: docs/behaviour/engine 6.4; Kyverno pkg/admissionpolicy (CollectParams).
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.cel import CelParamsIR
from kyverno_mp.program.action import selector_matches
from kyverno_mp.program.context.cel_scope import subject_namespace
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.own_namespace import is_outside
from kyverno_mp.program.ports import ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of

_STEPS_PER_OBJECT: Final = 4


def collect_params(
    params: CelParamsIR, request: Request, scope: RuleContext
) -> list[Json]:
    """Return the parameters. Raises: ExpressionFailed, DependencyError."""
    namespace = params.namespace or subject_namespace(request)
    if is_outside(scope.policy_namespace, namespace):
        raise _failed("paramRef.namespace must be that of the policy")
    objects = _found(params, namespace, scope)
    if params.name:
        if not objects:
            raise _failed(f'{params.kind.lower()}s "{params.name}" not found')
        return objects[:1]
    selector = params.selector
    if selector is not None:
        objects = [
            each
            for each in objects
            if selector_matches(selector, labels_of(metadata_of(each).get("labels")))
        ]
    if not objects and params.deny_without:
        raise _failed("no params found")
    return objects


def _failed(message: str) -> ExpressionFailed:
    return ExpressionFailed("cel.params", message)


def _found(params: CelParamsIR, namespace: str, scope: RuleContext) -> list[Json]:
    """Return the objects of the kind in the namespace, or cluster-scoped objects."""
    cluster_data = scope.cluster_data
    is_config_map = (params.api_version, params.kind) == ("v1", "ConfigMap")
    if cluster_data.objects is None:
        if is_config_map and params.name and cluster_data.config_maps is not None:
            maps, deadline_ns = cluster_data.config_maps, scope.runtime.deadline_ns
            return [maps.config_map(namespace, params.name, deadline_ns)]
        raise _failed(f"{params.kind} cannot be read without a cluster")
    group, _, version = params.api_version.rpartition("/")
    query_namespace = scope.policy_namespace
    if cluster_data.scopes is not None:
        is_namespaced = cluster_data.scopes.is_namespaced(group, version, params.kind)
        _check_scope(params, namespace, is_namespaced=is_namespaced)
        query_namespace = namespace if is_namespaced else ""
    object_query = ObjectQuery(
        group, version, params.kind, namespace=query_namespace, name=params.name
    )
    objects = cluster_data.objects.objects(object_query, scope.runtime.deadline_ns)
    scope.runtime.charge(_STEPS_PER_OBJECT * len(objects))
    namespaces = {metadata_of(each).get("namespace") or "" for each in objects}
    for object_namespace in namespaces:
        _check_scope(params, namespace, is_namespaced=bool(object_namespace))
    return [
        each
        for each in objects
        if (metadata_of(each).get("namespace") or "") in ("", namespace)
    ]


def _check_scope(params: CelParamsIR, namespace: str, *, is_namespaced: bool) -> None:
    if is_namespaced and not namespace:
        raise _failed("can't use namespaced paramRef to match cluster-scoped resources")
    if params.namespace and not is_namespaced:
        raise _failed(
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
        )
