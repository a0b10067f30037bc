"""Derive autogen copies of a CEL policy on Pods for Pod controllers.

Room: compiler. Takes: the spec of a policy. Gives: copies with rewritten
expressions and match constraints. Next: compiler/cel_kinds/validating_policy.py,
compiler/cel_kinds/image_validating_policy.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 7; Kyverno pkg/cel/autogen, pkg/cel/policies/vpol/autogen.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from kyverno_mp.policy.cel_kinds.admission_policy import (
    MatchResources,
    NamedRuleWithOperations,
    Operations,
)
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicySpec,
)
from kyverno_mp.policy.cel_kinds.validating_policy import ValidatingPolicySpec
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType

_Spec = TypeVar("_Spec", ValidatingPolicySpec, ImageValidatingPolicySpec)
_RECORDS: Final[Mapping[type, RecordType[Any]]] = {
    ValidatingPolicySpec: RecordType(ValidatingPolicySpec),
    ImageValidatingPolicySpec: RecordType(ImageValidatingPolicySpec),
}
_DEFAULTS: Final = {
    "daemonsets": "apps",
    "deployments": "apps",
    "jobs": "batch",
    "replicasets": "apps",
    "statefulsets": "apps",
}
_CRON_JOBS: Final = {"cronjobs": "batch"}
_COPIES: Final = (
    ("cronjobs", _CRON_JOBS, "spec.jobTemplate.spec.template"),
    ("defaults", _DEFAULTS, "spec.template"),
)
"""(configuration name, resource -> group, path of the Pod within the controller)."""


def copies_of(spec: _Spec) -> Iterator[tuple[str, _Spec]]:
    """Yield (configuration name, spec) of each copy."""
    wanted = None
    if spec.autogen is not None and spec.autogen.pod_controllers is not None:
        wanted = spec.autogen.pod_controllers.controllers
    for name, constraints, prefix in copied_constraints(spec.match_constraints, wanted):
        moved = _RECORDS[type(spec)].convert(_moved(spec.raw(), prefix))
        yield name, msgspec.structs.replace(moved, match_constraints=constraints)


def copied_constraints(
    constraints: MatchResources | None, wanted: Sequence[str] | None
) -> Iterator[tuple[str, MatchResources | None, str]]:
    """Yield (configuration name, match constraints, path of the Pod) of each copy.

    ``wanted``: the controllers that the policy lists; None: all.
    """
    if constraints is None or not _is_for_pods(constraints):
        return
    operations = constraints.resource_rules[0].operations
    for name, groups, prefix in _COPIES:
        resources = {
            plural: group
            for plural, group in groups.items()
            if wanted is None or plural in wanted
        }
        if resources:
            yield name, _constraints(operations, resources), prefix


def _is_for_pods(constraints: MatchResources) -> bool:
    """Return whether the constraints match only Pods, restricted only by operation."""
    rules = constraints.resource_rules
    return (
        not _selects(constraints.namespace_selector)
        and not _selects(constraints.object_selector)
        and not constraints.exclude_resource_rules
        and len(rules) == 1
        and not rules[0].resource_names
        and rules[0].api_groups == ("",)
        and rules[0].api_versions == ("v1",)
        and rules[0].resources == ("pods",)
    )


def _selects(selector: LabelSelector | None) -> bool:
    return selector is not None and bool(
        selector.match_labels or selector.match_expressions
    )


def _constraints(
    operations: Operations, resources: dict[str, str]
) -> MatchResources | None:
    if not operations:
        return None
    rules = tuple(
        NamedRuleWithOperations(
            api_groups=(group,),
            api_versions=("v1",),
            resources=tuple(
                sorted(one for one, of in resources.items() if of == group)
            ),
            operations=operations,
        )
        for group in sorted(set(resources.values()))
    )
    return MatchResources(resource_rules=rules)


def _moved(value: Json, prefix: str) -> Json:
    """Replace the paths of the Pod in all strings.

    KYVERNO: upstream replaces text in the policy's JSON, so it also changes messages,
    literals and ``request.object``, but not ``object["spec"]`` (docs/behaviour/cel 7).
    """
    if type(value) is str:
        for subject in ("object", "oldObject"):
            value = value.replace(f"{subject}.spec", f"{subject}.{prefix}.spec")
        for subject in ("object", "oldObject"):
            value = value.replace(f"{subject}.metadata", f"{subject}.{prefix}.metadata")
        return value
    if type(value) is list:
        return [_moved(item, prefix) for item in value]
    if type(value) is dict:
        return {key: _moved(item, prefix) for key, item in value.items()}
    return value
