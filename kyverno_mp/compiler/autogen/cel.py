"""Derive autogen copies of a CEL policy on Pods for Pod controllers.

Room: compiler. Takes: the spec of a policy. Gives: copies with rewritten
expressions and match constraints. Next: compiler/cel_kinds/validating_policy.py,
compiler/cel_kinds/image_validating_policy.py.
Source: docs/behaviour/cel 7; docs/behaviour/v1.19 12; Kyverno pkg/cel/autogen,
pkg/cel/policies/vpol/autogen.

A controller of another group, ``<resource>.<version>.<group>``, has no known path of
its Pods: its copy is unchanged, and is evaluated on the Pods of the object's templates
(program/validating_policy/templates.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.policy.cel_kinds.admission_policy import (
    MatchResources,
    NamedRuleWithOperations,
    Operations,
)
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicySpec,
)
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument
from kyverno_mp.policy.cel_kinds.validating_policy import ValidatingPolicySpec
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of
from kyverno_mp.values.records import RecordType

_Spec = TypeVar("_Spec", ValidatingPolicySpec, ImageValidatingPolicySpec)
_RECORDS: Final[Mapping[type, RecordType[Any]]] = {
    ValidatingPolicySpec: RecordType(ValidatingPolicySpec),
    ImageValidatingPolicySpec: RecordType(ImageValidatingPolicySpec),
}


class Controller(NamedTuple):
    """A resource whose objects create Pods."""

    resource: str
    version: str
    group: str


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
_PARTS: Final = 3


def custom_controller(name: str) -> Controller | None:
    """Return the controller ``<resource>.<version>.<group>``; None: another form."""
    parts = name.split(".", _PARTS - 1)
    if name in _DEFAULTS or name in _CRON_JOBS or len(parts) < _PARTS or "" in parts:
        return None
    return Controller(*parts)


def copy_warnings(policy: AnyCelDocument) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the entries of ``autogen`` without effect."""
    autogen = getattr(policy.spec, "autogen", None)
    if autogen is None:
        return
    controllers = autogen.pod_controllers
    names = () if controllers is None else controllers.controllers or ()
    is_mutating = rule_type_of(policy.kind) == "mutate"
    for index, reason in _without_effect(names, is_mutating=is_mutating):
        yield f"spec.autogen.podControllers.controllers[{index}]", reason


def _without_effect(
    names: Iterable[str], *, is_mutating: bool
) -> Iterator[tuple[int, str]]:
    """Yield (index, reason) of each entry of ``controllers`` without effect."""
    effective = [*_DEFAULTS, *_CRON_JOBS]
    for index, name in enumerate(names):
        if name in effective or name == "none":
            continue
        if custom_controller(name) is None:
            yield index, _unknown(name, effective)
        elif is_mutating:
            yield (
                index,
                (
                    f"{quote(name)}: objects of custom workloads are validated, but not"
                    " mutated"
                ),
            )


def _unknown(name: str, controllers: Sequence[str]) -> str:
    near = get_close_matches(name.lower(), controllers, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return (
        f"{quote(name)} is no controller of Pods and has no effect{meant} (another"
        " kind is named as <resource>.<version>.<group>)"
    )


def copies_of(spec: _Spec) -> Iterator[tuple[str, _Spec]]:
    """Yield (configuration name, spec) of each copy."""
    controllers = None
    if spec.autogen is not None and spec.autogen.pod_controllers is not None:
        controllers = spec.autogen.pod_controllers.controllers
    for name, constraints, prefix in copied_constraints(
        spec.match_constraints, controllers
    ):
        raw = spec.raw()
        moved = _RECORDS[type(spec)].convert(_moved(raw, prefix) if prefix else raw)
        yield name, msgspec.structs.replace(moved, match_constraints=constraints)


def copied_constraints(
    constraints: MatchResources | None, controllers: Sequence[str] | None
) -> Iterator[tuple[str, MatchResources | None, str]]:
    """Yield (configuration name, match constraints, path of the Pod) of each copy.

    ``controllers``: the controllers that the policy lists; None: all. The path is "" if
    only the object shows where its Pods are.
    """
    if constraints is None or not _is_for_pods(constraints):
        return
    operations = constraints.resource_rules[0].operations
    for name, groups, prefix in _COPIES:
        resources = {
            Controller(plural, "v1", group)
            for plural, group in groups.items()
            if controllers is None or plural in controllers
        }
        if resources:
            yield name, _constraints(operations, resources), prefix
    custom = frozenset(filter(None, map(custom_controller, controllers or ())))
    if custom:
        yield EXTRACTED, _constraints(operations, custom), ""


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
    operations: Operations, controllers: AbstractSet[Controller]
) -> MatchResources | None:
    if not operations:
        return None
    rules = tuple(
        NamedRuleWithOperations(
            api_groups=(group,),
            api_versions=(version,),
            resources=tuple(
                sorted(
                    each.resource
                    for each in controllers
                    if (each.group, each.version) == (group, version)
                )
            ),
            operations=operations,
        )
        for group, version in sorted(
            {(each.group, each.version) for each in controllers}
        )
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
